"""A ring NIC's operations: what is open, what is granted, and what each frame is for."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Shape, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from slackline.circuit._formats import Element
from slackline.circuit._frames import element_of
from slackline.circuit._ring_device import RingOptions
from slackline.circuit._ring_layouts import Arrived, Descriptor, DmaRequest, Job, Key
from slackline.circuit._ring_place import Place

__all__ = ["RingClerk"]

_BITS = 48
"""Of a byte's place in an operation."""


class Role(data.StructLayout):
    """This rank's in an operation: as RingPlace has them."""

    def __init__(self) -> None:
        super().__init__({"first": 1, "last": 1, "passes_on": 1})


class RingClerk(wiring.Component):
    """One matter at a time: an operation posted, a grant, a frame at the head of its channel.

    A key is looked for in all operations at once. An operation is *granted* when all ranks from
    here to the last have posted it: the last NIC grants what it posts, every other one what its
    successor has granted and it has posted itself; and each tells its predecessor, who asks for
    what it posts. So no partial ever waits in a slot for a host, whatever the order of posting.

    descriptors        what the host posts, while there is an operation free
    there, look, head  of the RingReceiver; `fetched` of each channel
    granted            keys from the successor; asks: keys from the predecessor
    grants, inquiries  keys for the predecessor, for the successor
    jobs               a stream for each channel: partials, or own data where they open; finals
    reads              what of the host's memory to read, in the order of `jobs[0]`
    room               the host's data of one more frame finds room; `reserved` beats are used
    tick               time to ask again, for one operation
    open               operations that are
    unexpected         a frame was not due
    """

    def __init__(self, options: RingOptions) -> None:
        self.options = options
        keys = stream.Signature(Key())
        jobs = stream.Signature(Job(options))
        super().__init__(
            {
                "place": In(Place()),
                "descriptors": In(stream.Signature(Descriptor())),
                "there": In(2),
                "look": Out(1),
                "head": In(Arrived()),
                "fetched": Out(2),
                "granted": In(keys),
                "asks": In(keys),
                "grants": Out(keys),
                "inquiries": Out(keys),
                "jobs": Out(jobs).array(2),
                "reads": Out(stream.Signature(DmaRequest())),
                "room": In(1),
                "reserved": Out(range(options.slot_beats + 1)),
                "tick": In(1),
                "open": Out(range(options.operations + 1)),
                "unexpected": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        options, place = self.options, self.place
        count = options.operations
        keys = [Signal(Key(), name=f"key_{k}") for k in range(count)]
        opened, allowed = Signal(count), Signal(count)
        index, key = Signal(range(count)), Signal(Key())
        hits, found = Signal(count), Signal()
        answers, source = Signal(), Signal()
        free, any_free = Signal(range(count)), Signal()
        m.d.sync += [any_free.eq(~opened.all()), free.eq(_lowest(m, ~opened, "free"))]

        m.submodules.descriptions = descriptions = Memory(shape=Descriptor(), depth=count, init=[])
        progress = data.StructLayout({"given": _BITS, "stored": _BITS})
        m.submodules.progresses = progresses = Memory(shape=progress, depth=count, init=[])
        describe, described = descriptions.write_port(), descriptions.read_port(domain="comb")
        put, got = progresses.write_port(), progresses.read_port(domain="comb")
        operation, so_far = Signal(Descriptor()), Signal(progress)
        m.submodules.roles = roles = Memory(shape=Role(), depth=count, init=[])
        assign, played = roles.write_port(), roles.read_port(domain="comb")
        start, posted, role = Signal(16), Signal(Role()), Signal(Role())
        m.d.comb += [
            describe.addr.eq(free),
            describe.data.eq(self.descriptors.payload),
            described.addr.eq(index),
            got.addr.eq(index),
            assign.addr.eq(index),
            assign.data.eq(posted),
            played.addr.eq(index),
        ]
        own = _queue(m, "own", range(count), count)
        give = _queue(m, "give", Key(), 2 * count, self.grants)
        ask = _queue(m, "ask", Key(), 2 * count, self.inquiries)
        jobs = [_queue(m, f"job_{k}", Job(options), 4, self.jobs[k]) for k in range(2)]
        reads = _queue(m, "read", DmaRequest(), 4, self.reads)

        frame, side = Signal(Arrived()), Signal()
        m.d.comb += self.look.eq(self.there[1] & jobs[1].w_rdy)
        begins = jobs[0].w_rdy & reads.w_rdy & self.room
        asking, scan = Signal(), Signal(range(count))
        with m.If(self.tick):
            m.d.sync += asking.eq(1)
        due, left, size = Signal(_BITS), Signal(_BITS), Signal(32)
        ends, right = Signal(), Signal()
        m.d.comb += [ask.w_data.eq(key), give.w_data.eq(key)]
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [source.eq(0), answers.eq(0), side.eq(self.look), frame.eq(self.head)]
                with m.If(self.granted.valid | self.asks.valid):
                    m.d.comb += [
                        self.granted.ready.eq(1),
                        self.asks.ready.eq(~self.granted.valid),
                    ]
                    m.d.sync += [
                        key.eq(Mux(self.granted.valid, self.granted.payload, self.asks.payload)),
                        answers.eq(1),
                        source.eq(self.granted.valid),
                    ]
                    m.next = "LOOK"
                with m.Elif(self.look | (self.there[0] & begins)):
                    m.d.comb += self.fetched.eq(Mux(self.look, 2, 1))
                    m.d.sync += key.eq(self.head.key)
                    m.next = "LOOK"
                with m.Elif(own.r_rdy & begins):
                    m.d.sync += [source.eq(1), index.eq(own.r_data), found.eq(1)]
                    m.next = "READ"
                with m.Elif(self.descriptors.valid & any_free):
                    m.d.comb += [describe.en.eq(1), self.descriptors.ready.eq(1)]
                    posts = self.descriptors.payload
                    m.d.sync += [index.eq(free), start.eq(posts.start)]
                    m.d.sync += [key.tag.eq(posts.tag), key.chunk.eq(posts.chunk)]
                    m.next = "POST"
                with m.Elif(asking):
                    m.d.sync += [asking.eq(0), scan.eq(scan + 1), index.eq(scan)]
                    m.next = "SCAN"
            with m.State("LOOK"):
                m.d.sync += hits.eq(
                    Cat(*(opened[k] & (keys[k].as_value() == key.as_value()) for k in range(count)))
                )
                m.next = "HIT"
            with m.State("HIT"):
                m.d.sync += [found.eq(hits.any()), index.eq(_lowest(m, hits, "hit"))]
                m.next = "READ"
                with m.If(answers):
                    m.next = "ANSWER"
            with m.State("ANSWER"):
                # `source` tells a grant from a question.
                known = allowed.bit_select(index, 1)
                with m.If(found & source & ~known):
                    m.d.sync += allowed.bit_select(index, 1).eq(1)
                    m.d.comb += [own.w_en.eq(played.data.first), give.w_en.eq(~played.data.first)]
                m.d.comb += own.w_data.eq(index)
                with m.If(found & ~source & known):
                    m.d.comb += give.w_en.eq(1)
                m.next = "IDLE"
            with m.State("POST"):
                for k in range(count):
                    with m.If(index == k):
                        m.d.sync += keys[k].eq(key)
                m.d.sync += [opened.bit_select(index, 1).eq(1), self.open.eq(self.open + 1)]
                # `hops` of RingPlace.
                ahead = place.rank - start
                hops = Mux(ahead < 0, ahead + place.ranks, ahead)[:16]
                m.d.sync += [
                    posted.first.eq(hops == 0),
                    posted.last.eq(hops + 1 == place.ranks),
                    posted.passes_on.eq(hops + 2 < place.ranks),
                ]
                m.d.comb += put.en.eq(1)
                m.next = "ROLE"
            with m.State("ROLE"):
                # Meanwhile the number of the next free operation has come about.
                m.d.sync += allowed.bit_select(index, 1).eq(posted.last)
                m.d.comb += [
                    assign.en.eq(1),
                    give.w_en.eq(posted.last),
                    ask.w_en.eq(~posted.last),
                ]
                m.next = "IDLE"
            with m.State("SCAN"):
                m.d.comb += ask.w_data.eq(Cat(described.data.tag, described.data.chunk))
                m.d.comb += ask.w_en.eq((opened & ~allowed).bit_select(index, 1))
                m.next = "IDLE"
            with m.State("READ"):
                m.d.sync += [operation.eq(described.data), so_far.eq(got.data)]
                m.d.sync += role.eq(played.data)
                m.next = "LEFT"
            with m.State("LEFT"):
                at = Mux(side & ~source, so_far.stored, so_far.given)
                m.d.sync += [due.eq(at), left.eq(operation.total - at)]
                m.next = "SIZE"
            with m.State("SIZE"):
                m.d.sync += [
                    ends.eq(left <= operation.frame_bytes),
                    size.eq(Mux(left < operation.frame_bytes, left, operation.frame_bytes)),
                ]
                m.next = "CHECK"
            with m.State("CHECK"):
                m.d.sync += right.eq(
                    source | (found & self._right(frame, operation, role, so_far, side, due, size))
                )
                m.next = "GIVE"
            with m.State("GIVE"):
                partial = source | ~side
                after = (due + size)[:_BITS]
                m.d.comb += [
                    put.en.eq(right),
                    jobs[0].w_en.eq(partial),
                    jobs[1].w_en.eq(~partial),
                    self.unexpected.eq(~right),
                    own.r_en.eq(source & ends),
                    reads.w_en.eq(partial & right),
                    put.data.given.eq(Mux(partial, after, so_far.given)),
                    put.data.stored.eq(Mux(partial, so_far.stored, after)),
                ]
                with m.If(right & (~partial | role.last) & ends):
                    m.d.sync += [
                        opened.bit_select(index, 1).eq(0),
                        self.open.eq(self.open - 1),
                    ]
                m.next = "IDLE"
        m.d.comb += put.addr.eq(index)
        job, read = Signal(Job(options)), Signal(DmaRequest())
        beats = (size + (options.beat_bytes - 1)) >> ceil_log2(options.beat_bytes)
        m.d.comb += [
            read.address.eq(operation.source + due),
            read.bytes.eq(size),
            jobs[0].w_data.eq(job),
            jobs[1].w_data.eq(job),
            reads.w_data.eq(read),
            self.reserved.eq(Mux(reads.w_en, beats, 0)),
        ]
        self._describe(m, job, operation, role, size, due, source, side, right, ends)
        return m

    def _describe(
        self,
        m: Module,
        job: data.View,
        operation: data.View,
        role: data.View,
        size: Value,
        due: Value,
        source: Value,
        side: Value,
        right: Value,
        ends: Value,
    ) -> None:
        """The frame as a job."""
        options = self.options
        partial = source | ~side
        element = element_of(operation.dtype)
        wide = partial & (element >= Element.BFLOAT16)
        wire = Mux(wide, size << 1, size)[:32]
        shift = ceil_log2(options.beat_bytes)
        wire_beats = (wire + (options.beat_bytes - 1)) >> shift
        m.d.comb += [
            job.drop.eq(~right),
            job.passing.eq(~source),
            job.local.eq(partial & right),
            job.finish.eq(partial & role.last),
            job.send.eq(right & (partial | role.passes_on)),
            job.final.eq(~partial | role.last),
            job.store.eq(right & (~partial | role.last)),
            job.ends.eq(ends),
            job.element.eq(element),
            job.dtype.eq(operation.dtype),
            job.beats.eq(wire_beats),
            job.key.eq(Cat(operation.tag, operation.chunk)),
            job.offset.eq(due),
            job.total.eq(operation.total),
            job.length.eq(Mux(role.last, size, wire)),
            job.address.eq(operation.target + due),
            job.size.eq(size),
        ]

    def _right(
        self,
        frame: data.View,
        operation: data.View,
        role: data.View,
        so_far: data.View,
        side: Value,
        due: Value,
        size: Value,
    ) -> Value:
        """Whether a frame is the one that is due."""
        wide = ~side & (element_of(operation.dtype) >= Element.BFLOAT16)
        takes = Mux(side, ~role.last, ~role.first)
        # A sum is final only when this rank's own part is in it.
        known = ~side | (due + size <= so_far.given)
        return (
            takes[0]
            & (frame.dtype == operation.dtype)
            & (frame.total == operation.total)
            & (frame.offset == due)
            & (frame.length == Mux(wide, size << 1, size))
            & known
        )


def _queue(m: Module, name: str, shape: object, depth: int, o: Any = None) -> SyncFIFO:
    """A FIFO; what comes out of it is `o`, if there is one."""
    width = Shape.cast(shape).width
    m.submodules[name] = fifo = SyncFIFO(width=width, depth=depth)
    if o is not None:
        m.d.comb += [
            Value.cast(o.payload).eq(fifo.r_data),
            o.valid.eq(fifo.r_rdy),
            fifo.r_en.eq(o.ready),
        ]
    return fifo


def _lowest(m: Module, bits: Signal, name: str) -> Signal:
    """The lowest bit that is set."""
    found = Signal(range(len(bits)), name=f"lowest_{name}")
    for k in reversed(range(len(bits))):
        with m.If(bits[k]):
            m.d.comb += found.eq(k)
    return found
