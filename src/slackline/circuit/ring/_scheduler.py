"""A ring NIC's scheduler: open operations, grants, and the choice of the next frame."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from slackline.circuit.options import RingOptions
from slackline.circuit.ring._issuer import RingIssuer, Role, queue
from slackline.circuit.ring._layouts import Arrived, Descriptor, DmaRequest, Job, Key
from slackline.circuit.ring._place import Place

__all__ = ["RingScheduler"]


class RingScheduler(wiring.Component):
    """A ring NIC's scheduler, which handles one posted operation, grant or frame at a time.

    A Key (tag and chunk) is compared with the Keys of all operations at once. While the RingIssuer
    makes a job for a frame, the scheduler looks for the next frame's operation.

    An operation is *granted* when all ranks from this one to the operation's last rank have posted
    the operation. The last rank's NIC grants each operation that its host posts. Every other NIC
    grants an operation that its host has posted and its successor has granted. Each NIC tells its
    predecessor of its grants, and requests a grant of each operation that its host posts. Therefore
    no partial sum ever waits in a slot for a host, whatever the order of posting.

    descriptors                 operations that the host posts; taken while another may be open
    there, look, head, fetched  of the RingReceiver: the frame at the head of each channel
    granted, asks               Keys that the successor grants; Keys that the predecessor asks for
    grants, inquiries           Keys that are granted to the predecessor, or asked of the successor
    jobs                        a stream for each channel: partial sums, or this host's data that
                                start a sum; final sums
    reads                       reads of the host's memory, in the order of `jobs[0]`
    room                        the read buffer has room for one more frame; for two more frames
    reserved                    beats of the read buffer that are reserved in this cycle
    space                       a partial sum may enter the channel at this NIC
    claimed                     a partial sum will enter the channel here, and claims its slot at
                                the successor now
    waits                       a frame of this host's data waits for `space`
    tick                        a pulse: the grant of one operation is to be requested again
    open                        the number of open operations
    unexpected                  a pulse: a frame was not due
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
                "room": In(2),
                "reserved": Out(range(options.slot_beats + 1)),
                "space": In(1),
                "claimed": Out(1),
                "waits": Out(1),
                "tick": In(1),
                "open": Out(range(options.operations + 1)),
                "unexpected": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        options, place = self.options, self.place
        count = options.operations
        m.submodules.issuer = issuer = RingIssuer(options)
        for jobs, made in zip(self.jobs, issuer.jobs, strict=True):
            wiring.connect(m, wiring.flipped(jobs), made)
        wiring.connect(m, wiring.flipped(self.reads), issuer.reads)
        keys = [Signal(Key(), name=f"key_{k}") for k in range(count)]
        opened, allowed = Signal(count), Signal(count)
        index, key = Signal(range(count)), Signal(Key())
        hits, found = Signal(count), Signal()
        # The Key to look for belongs to a frame or, if `answers` is high, to a grant or to a
        # request for a grant.
        answers, grant = Signal(), Signal()
        free, any_free = Signal(range(count)), Signal()
        m.d.sync += [any_free.eq(~opened.all()), free.eq(_lowest(m, ~opened, "free"))]
        own = queue(m, "own", range(count), count)
        give = queue(m, "give", Key(), 2 * count, self.grants)
        ask = queue(m, "ask", Key(), 2 * count, self.inquiries)

        frame, side = Signal(Arrived()), Signal()
        posted, start, role = self.descriptors.payload, Signal(16), Signal(Role())
        may_own = own.r_rdy & issuer.may[0] & issuer.idle
        asking, scan = Signal(), Signal(range(count))
        with m.If(self.tick):
            m.d.sync += asking.eq(1)
        matter = self.granted.valid | self.asks.valid
        look = issuer.i
        lowest = _lowest(m, hits, "hit")
        m.d.comb += [
            self.look.eq(self.there[1] & issuer.may[1]),
            self.waits.eq(own.r_rdy & ~self.space),
            issuer.room.eq(self.room),
            self.reserved.eq(issuer.reserved),
            self.unexpected.eq(issuer.unexpected),
            issuer.at.eq(index),
            issuer.descriptor.eq(posted),
            issuer.assigned.eq(role),
            own.r_en.eq(issuer.ends_source),
            own.w_data.eq(index),
            ask.w_data.eq(key),
            give.w_data.eq(key),
            look.payload.frame.eq(frame),
            look.payload.side.eq(side),
            look.payload.found.eq(hits.any()),
            look.payload.index.eq(lowest),
        ]
        opens = Signal()
        m.d.sync += self.open.eq(self.open + opens - issuer.closes)
        with m.If(issuer.closes):
            m.d.sync += opened.bit_select(issuer.index, 1).eq(0)
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [side.eq(self.look), frame.eq(self.head), answers.eq(matter)]
                m.d.sync += grant.eq(self.granted.valid)
                with m.If(matter):
                    m.d.sync += key.eq(
                        Mux(self.granted.valid, self.granted.payload, self.asks.payload)
                    )
                    # No frame begins before a waiting grant or request, so the issuer becomes
                    # idle for it.
                    with m.If(issuer.idle):
                        m.d.comb += [
                            self.granted.ready.eq(1),
                            self.asks.ready.eq(~self.granted.valid),
                        ]
                        m.next = "LOOK"
                with m.Elif(self.look | (self.there[0] & issuer.may[0])):
                    m.d.comb += self.fetched.eq(Mux(self.look, 2, 1))
                    m.d.sync += key.eq(self.head.key)
                    m.next = "LOOK"
                with m.Elif(may_own & self.space):
                    m.d.comb += [
                        self.claimed.eq(1),
                        look.valid.eq(1),
                        look.payload.source.eq(1),
                        look.payload.index.eq(own.r_data),
                    ]
                with m.Elif(self.descriptors.valid & any_free & issuer.idle):
                    m.d.comb += [
                        self.descriptors.ready.eq(1),
                        issuer.at.eq(free),
                        issuer.posts.eq(1),
                    ]
                    m.d.sync += [index.eq(free), start.eq(posted.start)]
                    m.d.sync += [key.tag.eq(posted.tag), key.chunk.eq(posted.chunk)]
                    m.next = "POST"
                with m.Elif(asking & issuer.idle):
                    m.d.sync += [asking.eq(0), scan.eq(scan + 1), index.eq(scan)]
                    m.next = "SCAN"
            with m.State("LOOK"):
                same = (each.as_value() == key.as_value() for each in keys)
                m.d.sync += hits.eq(Cat(*same) & opened)
                m.next = "HIT"
            with m.State("HIT"):
                m.d.sync += [found.eq(hits.any()), index.eq(lowest)]
                m.d.comb += look.valid.eq(~answers)
                with m.If(answers):
                    m.next = "ANSWER"
                with m.Elif(look.ready):
                    m.next = "IDLE"
            with m.State("ANSWER"):
                known = allowed.bit_select(index, 1)
                first = issuer.role.first
                with m.If(found & grant & ~known):
                    m.d.sync += allowed.bit_select(index, 1).eq(1)
                    m.d.comb += [own.w_en.eq(first), give.w_en.eq(~first)]
                with m.If(found & ~grant & known):
                    m.d.comb += give.w_en.eq(1)
                m.next = "IDLE"
            with m.State("POST"):
                for k in range(count):
                    with m.If(index == k):
                        m.d.sync += keys[k].eq(key)
                m.d.sync += opened.bit_select(index, 1).eq(1)
                m.d.comb += opens.eq(1)
                # RingPlace.hops has the same arithmetic.
                ahead = place.rank - start
                hops = Mux(ahead < 0, ahead + place.ranks, ahead)[:16]
                m.d.sync += [
                    role.first.eq(hops == 0),
                    role.last.eq(hops + 1 == place.ranks),
                    role.passes_on.eq(hops + 2 < place.ranks),
                ]
                m.next = "ROLE"
            with m.State("ROLE"):
                # This state lasts one cycle, in which `free` finds the next operation number that
                # is not in use.
                m.d.sync += allowed.bit_select(index, 1).eq(role.last)
                m.d.comb += [
                    issuer.assigns.eq(1),
                    give.w_en.eq(role.last),
                    ask.w_en.eq(~role.last),
                ]
                m.next = "IDLE"
            with m.State("SCAN"):
                m.d.comb += ask.w_data.eq(issuer.key)
                m.d.comb += ask.w_en.eq((opened & ~allowed).bit_select(index, 1))
                m.next = "IDLE"
        return m


def _lowest(m: Module, bits: Signal, name: str) -> Signal:
    """Return a signal: the index of the lowest bit that is set."""
    found = Signal(range(len(bits)), name=f"lowest_{name}")
    for k in reversed(range(len(bits))):
        with m.If(bits[k]):
            m.d.comb += found.eq(k)
    return found
