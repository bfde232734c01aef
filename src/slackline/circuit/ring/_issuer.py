"""The part of a ring NIC's scheduler that tracks operations and makes a job for each frame."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Shape, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from slackline.circuit.datapath import is_half
from slackline.circuit.frame import element_of
from slackline.circuit.options import RingOptions
from slackline.circuit.ring._layouts import Arrived, Descriptor, DmaRequest, Job, Key

__all__ = ["Found", "RingIssuer", "Role", "queue"]

_BITS = 48
"""Bits of a byte's offset in an operation."""
_QUEUED = 4
"""The least number of jobs of a virtual channel that may wait for the adders."""


class Role(data.StructLayout):
    """The role of this rank in an operation: `first`, `last` and `passes_on` of RingPlace."""

    def __init__(self) -> None:
        super().__init__({"first": 1, "last": 1, "passes_on": 1})


class Found(data.StructLayout):
    """A frame to handle: its virtual channel `side` and, if `found`, the index of its operation.

    With `source` there is no received frame: the operation's next frame is this host's own data.
    """

    def __init__(self, options: RingOptions) -> None:
        index = range(options.operations)
        bits = ("found", "source", "side")
        super().__init__({"index": index, **dict.fromkeys(bits, 1), "frame": Arrived()})


class _Progress(data.StructLayout):
    """The progress of an operation: counts of bytes given to the adders and stored at the host.

    The counts of the remaining bytes are stored too, so that a comparison needs no subtraction.
    """

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(("given", "stored", "to_give", "to_store"), _BITS))


class _Step(data.StructLayout):
    """The next frame of an operation.

    due    the frame's offset
    left   bytes of the operation from that offset on
    size   bytes of the operation in the frame
    ends   the frame is the operation's last one
    right  the frame that came is this frame
    """

    def __init__(self) -> None:
        super().__init__({"due": _BITS, "left": _BITS, "size": 32, "ends": 1, "right": 1})


class RingIssuer(wiring.Component):
    """A unit of the scheduler that makes a job for the adders from a frame, in four cycles each.

    The issuer reads the state of the frame's operation, computes the frame's size, checks that
    the frame is due, and queues the job.

    i                  stream of Found; ready when no frame is being handled, or one ends in this
                       cycle
    idle               no frame is being handled
    may                of each channel: there is room for a frame besides the one being handled
    posts              an operation begins: its `descriptor` is stored for number `at`; only while
                       idle
    assigns            the operation's role, `assigned`, is stored for number `at`
    role, key          of operation `at`, while idle
    jobs, reads, room  of the RingScheduler, as are reserved and unexpected
    index              the number of the operation being handled; `closes`: it is no longer open
    ends_source        a pulse: the last frame of this host's own data was given
    """

    def __init__(self, options: RingOptions) -> None:
        self.options = options
        number = range(options.operations)
        super().__init__(
            {
                "i": In(stream.Signature(Found(options))),
                "idle": Out(1),
                "may": Out(2),
                "posts": In(1),
                "assigns": In(1),
                "at": In(number),
                "descriptor": In(Descriptor()),
                "assigned": In(Role()),
                "role": Out(Role()),
                "key": Out(Key()),
                "jobs": Out(stream.Signature(Job(options))).array(2),
                "reads": Out(stream.Signature(DmaRequest())),
                "room": In(2),
                "reserved": Out(range(options.slot_beats + 1)),
                "index": Out(number),
                "closes": Out(1),
                "ends_source": Out(1),
                "unexpected": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        options = self.options
        count = options.operations
        # Each frame in a slot may wait for data from host memory, so a queue holds a job for each
        # slot.
        ahead = max(_QUEUED, options.slots)
        jobs = [queue(m, f"job_{k}", Job(options), ahead, self.jobs[k]) for k in range(2)]
        reads = queue(m, "read", DmaRequest(), ahead, self.reads)
        busy = ~self.idle
        # The frame being handled may go to either channel, so both channels count it.
        fits = [each.level + busy < ahead for each in (*jobs, reads)]
        host = Mux(busy, self.room[1], self.room[0])
        m.d.comb += self.may.eq(Cat(fits[0] & fits[2] & host, fits[1]))

        m.submodules.descriptions = descriptions = Memory(shape=Descriptor(), depth=count, init=[])
        m.submodules.progresses = progresses = Memory(shape=_Progress(), depth=count, init=[])
        m.submodules.roles = roles = Memory(shape=Role(), depth=count, init=[])
        describe, described = descriptions.write_port(), descriptions.read_port(domain="comb")
        put, got = progresses.write_port(), progresses.read_port(domain="comb")
        assign, played = roles.write_port(), roles.read_port(domain="comb")
        current = Signal(Found(options))
        at = Mux(self.idle, self.at, current.index)
        m.d.comb += [
            describe.addr.eq(self.at),
            describe.data.eq(self.descriptor),
            describe.en.eq(self.posts),
            assign.addr.eq(self.at),
            assign.data.eq(self.assigned),
            assign.en.eq(self.assigns),
            described.addr.eq(at),
            got.addr.eq(at),
            played.addr.eq(at),
            put.addr.eq(at),
            self.role.eq(played.data),
            self.key.eq(Cat(described.data.tag, described.data.chunk)),
            self.index.eq(current.index),
        ]

        operation, so_far, role = Signal(Descriptor()), Signal(_Progress()), Signal(Role())
        step = Signal(_Step())
        source, size = current.source, step.size
        finals = current.side & ~source
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += [self.idle.eq(1), self.i.ready.eq(1)]
                with m.If(self.i.valid):
                    m.next = "READ"
            with m.State("READ"):
                m.d.sync += [operation.eq(described.data), so_far.eq(got.data)]
                m.d.sync += role.eq(played.data)
                m.next = "SIZE"
            with m.State("SIZE"):
                rest = Mux(finals, so_far.to_store, so_far.to_give)
                m.d.sync += [
                    step.due.eq(Mux(finals, so_far.stored, so_far.given)),
                    step.left.eq(rest),
                    step.ends.eq(rest <= operation.frame_bytes),
                    size.eq(Mux(rest < operation.frame_bytes, rest, operation.frame_bytes)),
                ]
                m.next = "CHECK"
            with m.State("CHECK"):
                matches = self._matches(current, operation, role, so_far, step)
                m.d.sync += step.right.eq(source | (current.found & matches))
                m.next = "GIVE"
            with m.State("GIVE"):
                after, rest = (step.due + size)[:_BITS], (step.left - size)[:_BITS]
                m.d.comb += [
                    self.i.ready.eq(1),
                    put.en.eq(step.right),
                    put.data.given.eq(Mux(finals, so_far.given, after)),
                    put.data.stored.eq(Mux(finals, after, so_far.stored)),
                    put.data.to_give.eq(Mux(finals, so_far.to_give, rest)),
                    put.data.to_store.eq(Mux(finals, rest, so_far.to_store)),
                    jobs[0].w_en.eq(~finals),
                    jobs[1].w_en.eq(finals),
                    reads.w_en.eq(~finals & step.right),
                    self.unexpected.eq(~step.right),
                    self.ends_source.eq(source & step.ends),
                    self.closes.eq(step.right & (finals | role.last) & step.ends),
                ]
                m.next = "IDLE"
                with m.If(self.i.valid):
                    m.next = "READ"
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += current.eq(self.i.payload)
        with m.If(self.posts):
            total = self.descriptor.total
            m.d.comb += [
                put.en.eq(1),
                put.data.given.eq(0),
                put.data.stored.eq(0),
                put.data.to_give.eq(total),
                put.data.to_store.eq(total),
            ]
        job, read = Signal(Job(options)), Signal(DmaRequest())
        self._describe(m, job, current, operation, role, step)
        beats = (size + (options.beat_bytes - 1)) >> ceil_log2(options.beat_bytes)
        m.d.comb += [
            read.address.eq(operation.source + step.due),
            read.bytes.eq(size),
            jobs[0].w_data.eq(job),
            jobs[1].w_data.eq(job),
            reads.w_data.eq(read),
            self.reserved.eq(Mux(reads.w_en, beats, 0)),
        ]
        return m

    def _describe(
        self,
        m: Module,
        job: data.View,
        current: data.View,
        operation: data.View,
        role: data.View,
        step: data.View,
    ) -> None:
        """Fill in the fields of the current frame's job."""
        options, size, source = self.options, step.size, current.source
        partial = source | ~current.side
        element = element_of(operation.dtype)
        wide = partial & is_half(element)
        wire = Mux(wide, size << 1, size)[:32]
        shift = ceil_log2(options.beat_bytes)
        m.d.comb += [
            job.drop.eq(~step.right),
            job.passing.eq(~source),
            job.local.eq(partial & step.right),
            job.finish.eq(partial & role.last),
            job.send.eq(step.right & (partial | role.passes_on)),
            job.enters.eq(source | (partial & role.last)),
            job.final.eq(~partial | role.last),
            job.store.eq(step.right & (~partial | role.last)),
            job.ends.eq(step.ends),
            job.element.eq(element),
            job.dtype.eq(operation.dtype),
            job.beats.eq((wire + (options.beat_bytes - 1)) >> shift),
            job.key.eq(Cat(operation.tag, operation.chunk)),
            job.offset.eq(step.due),
            job.total.eq(operation.total),
            job.length.eq(Mux(role.last, size, wire)),
            job.address.eq(operation.target + step.due),
            job.size.eq(size),
        ]

    def _matches(
        self,
        current: data.View,
        operation: data.View,
        role: data.View,
        so_far: data.View,
        step: data.View,
    ) -> Value:
        """Return a signal: the current frame is the next one of its operation."""
        frame, final, size = current.frame, current.side, step.size
        wide = ~final & is_half(element_of(operation.dtype))
        # A final sum contains this rank's contribution, which must have been added before.
        known = ~final | (step.due + size <= so_far.given)
        return (
            ~Mux(final, role.last, role.first)[0]
            & (frame.dtype == operation.dtype)
            & (frame.total == operation.total)
            & (frame.offset == step.due)
            & (frame.length == Mux(wide, size << 1, size))
            & known
        )


def queue(m: Module, name: str, shape: object, depth: int, o: Any = None) -> SyncFIFO:
    """Add a FIFO to `m` and return it; connect the FIFO's output to stream `o`, if given."""
    width = Shape.cast(shape).width
    m.submodules[name] = fifo = SyncFIFO(width=width, depth=depth)
    if o is not None:
        m.d.comb += [
            Value.cast(o.payload).eq(fifo.r_data),
            o.valid.eq(fifo.r_rdy),
            fifo.r_en.eq(o.ready),
        ]
    return fifo
