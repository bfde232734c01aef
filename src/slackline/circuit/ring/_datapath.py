"""A ring NIC's datapath, which adds this host's contribution to the partial sums it forwards."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from slackline.circuit.datapath import Adder, Rounder, Widen, chosen_words, is_half, way_of
from slackline.circuit.options import ELEMENT_BITS, WAY_BITS, Element, RingOptions, Way
from slackline.circuit.ring._layouts import Job

__all__ = ["STALLS", "RingDatapath", "Summed"]

STALLS = ("adder", "no_credit", "no_local_data", "no_peer_data", "no_host_room")
"""Reasons why no beat begins in a cycle although operations are open; exactly one applies at a
time."""

_READ = 1
"""Cycles from a beat's address to the beat's word."""


class Summed(data.StructLayout):
    """A beat that comes out of the datapath.

    data, last   the words; the beat is its frame's last
    final        the channel: partial or final sums
    send, store  the beat goes to the successor; the beat goes to the host
    ready        the frame may start to leave, since its other beats will come in time
    """

    def __init__(self, lanes: int) -> None:
        bits = ("last", "final", "send", "store", "ready")
        super().__init__({"data": 32 * lanes, **dict.fromkeys(bits, 1)})


class _Token(data.StructLayout):
    """Control bits that travel through the datapath beside a beat."""

    def __init__(self) -> None:
        bits = ("beat", "second", "rounds", "last", "first", "final", "send", "store")
        super().__init__(
            {
                **dict.fromkeys(bits, 1),
                "element": ELEMENT_BITS,
                "widen": ELEMENT_BITS,
                "way": WAY_BITS,
                "operands": 2,
            }
        )


class RingDatapath(wiring.Component):
    """A datapath that begins a job only when all its inputs are there, so no frame stalls midway.

    jobs                           a stream of Job for each virtual channel: partial sums
                                   ("partials") and final sums ("finals"); finals go first
    local_word                     a beat of this host's contribution, taken with `local_taken`
    local_whole                    a whole frame of the contribution is there; `local_begun`: a job
                                   takes it
    room                           of each channel: a frame may be begun for the successor
    space                          a final sum that enters its channel at this NIC may be begun. A
                                   partial sum that enters here has claimed its slot already
    waits                          a partial sum would enter here, but no slot is free for it
    host_room                      a frame may be begun for the host
    begun, job                     a job is taken, and owns its resources from now on
    side, address, word, released  of the RingReceiver
    valid, o                       beats of Summed, which the receivers always take
    open                           some operation is open
    busy                           a beat begins
    stalls                         a bit for each of STALLS

    For fp32 and int32 the result is the predecessor's partial sum plus this host's data. For 16-bit
    types this host's data are widened, and the sum stays fp32 until the last rank rounds it. Data
    that are only forwarded, or that start a sum, are added to zero as integers, which changes no
    bit. A beat comes out LATENCY cycles after it began.

    The twin (bit-exact Python model) is RingTwin.
    """

    LATENCY = _READ + Widen.LATENCY + Adder.LATENCY + Rounder.LATENCY

    def __init__(self, options: RingOptions) -> None:
        self.options = options
        word = 32 * options.lanes
        super().__init__(
            {
                "jobs": In(stream.Signature(Job(options))).array(2),
                "local_word": In(word),
                "local_whole": In(1),
                "local_taken": Out(1),
                "local_begun": Out(1),
                "room": In(2),
                "space": In(1),
                "waits": In(1),
                "host_room": In(1),
                "begun": Out(1),
                "job": Out(Job(options)),
                "side": Out(1),
                "address": Out(range(options.slot_beats)),
                "word": In(word),
                "released": Out(2),
                "valid": Out(1),
                "o": Out(Summed(options.lanes)),
                "open": In(1),
                "busy": Out(1),
                "stalls": Out(data.StructLayout(dict.fromkeys(STALLS, 1))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        options = self.options
        current, active = Signal(Job(options)), Signal()
        staged, waiting = Signal(Job(options)), Signal()
        channel, current_channel = Signal(), Signal()
        beat, left = Signal(range(options.slot_beats)), Signal(range(options.slot_beats + 1))
        second = Signal()
        starts, ends = Signal(), Signal()
        half = is_half(current.element)
        m.d.comb += [
            ends.eq(active & (left == 1)),
            starts.eq(waiting & (ends | ~active)),
            self.busy.eq(active),
            self.side.eq(current_channel),
            self.address.eq(beat),
        ]
        last = left == 1
        # A beat of this host's 16-bit elements makes two beats of fp32.
        m.d.comb += self.local_taken.eq(active & current.local & (~half | second | last))
        with m.If(active):
            m.d.sync += [beat.eq(beat + 1), left.eq(left - 1), second.eq(~second)]
        with m.If(ends):
            m.d.sync += active.eq(0)
            m.d.comb += self.released.eq(Mux(current.passing, Mux(current_channel, 2, 1), 0))
        with m.If(starts):
            m.d.sync += [
                waiting.eq(0),
                current.eq(staged),
                current_channel.eq(channel),
                active.eq(~staged.drop),
                beat.eq(0),
                left.eq(staged.beats),
                second.eq(0),
            ]
        # A dropped frame frees its slot a cycle later, because the previous job frees its own slot
        # in this cycle.
        dropped = Signal(2)
        m.d.sync += dropped.eq(Mux(starts & staged.drop, Mux(channel, 2, 1), 0))
        with m.If(dropped.any()):
            m.d.comb += self.released.eq(dropped)
        self._take(m, staged, waiting, channel, starts | ~waiting, active)
        token = Signal(_Token())
        m.d.comb += [
            token.beat.eq(active),
            token.second.eq(second),
            token.rounds.eq(half & current.finish & current.local),
            token.last.eq(last),
            token.first.eq(beat == 0),
            token.final.eq(current.final),
            token.send.eq(current.send),
            token.store.eq(current.store),
            token.element.eq(current.element),
            token.widen.eq(Mux(current.local & half, current.element, Element.FLOAT32)),
            token.operands.eq(Cat(current.passing, current.local)),
            token.way.eq(Mux(current.passing & current.local, way_of(current.element), Way.WRAP)),
        ]
        self._datapath(m, token)
        return m

    def _take(
        self,
        m: Module,
        staged: data.View,
        waiting: Signal,
        channel: Signal,
        free: Signal,
        active: Signal,
    ) -> None:
        """Begin the next job if all its inputs are there; otherwise set the reason in `stalls`."""
        may, lacks = [], []
        for jobs in self.jobs:
            job = jobs.payload
            no_local = job.local & ~self.local_whole
            final = Mux(job.enters, self.space, self.room[1])
            no_credit = job.send & ~Mux(job.final, final, self.room[0] | job.enters)
            no_host = job.store & ~self.host_room
            may.append(jobs.valid & ~no_local & ~no_credit & ~no_host)
            lacks.append((jobs.valid & no_local, jobs.valid & no_credit, jobs.valid & no_host))
        # The resources that a job takes are counted two cycles later, so the next job waits two
        # cycles.
        pause = Signal(2)
        finals = Signal()
        m.d.sync += pause.eq(Cat(self.begun, pause))
        m.d.comb += [
            self.begun.eq(free & ~pause.any() & (may[0] | may[1])),
            finals.eq(may[1]),
            self.job.eq(Mux(finals, self.jobs[1].payload, self.jobs[0].payload)),
            self.jobs[0].ready.eq(self.begun & ~finals),
            self.jobs[1].ready.eq(self.begun & finals),
            self.local_begun.eq(self.begun & self.job.local),
        ]
        with m.If(self.begun):
            m.d.sync += [waiting.eq(1), staged.eq(self.job), channel.eq(finals)]
        local, credit, host = (one | other for one, other in zip(*lacks, strict=True))
        stalls = self.stalls
        with m.If(self.open & ~active):
            with m.If(waiting | may[0] | may[1]):
                m.d.comb += stalls.adder.eq(1)
            with m.Elif(credit | self.waits):
                m.d.comb += stalls.no_credit.eq(1)
            with m.Elif(host):
                m.d.comb += stalls.no_host_room.eq(1)
            with m.Elif(local):
                m.d.comb += stalls.no_local_data.eq(1)
            with m.Else():
                m.d.comb += stalls.no_peer_data.eq(1)

    def _datapath(self, m: Module, token: data.View) -> None:
        lanes = self.options.lanes
        tokens = [token]
        for k in range(self.LATENCY):
            tokens.append(Signal(_Token(), name=f"token_{k}"))
            m.d.sync += tokens[-1].eq(tokens[-2])
        local = Signal(32 * lanes, reset_less=True)
        m.d.sync += local.eq(self.local_word)
        read = tokens[_READ]
        halves = is_half(read.widen)
        m.submodules.rounder = rounder = Rounder(lanes)
        m.d.comb += rounder.element.eq(tokens[-1 - Rounder.LATENCY].element)
        for k, own in enumerate(chosen_words(local, read.second, halves)):
            m.submodules[f"widen_{k}"] = widen = Widen()
            m.submodules[f"adder_{k}"] = adder = Adder()
            passing = [Mux(read.operands[0], self.word.word_select(k, 32), 0)]
            for _ in range(Widen.LATENCY):
                passing.append(Signal(32, reset_less=True))
                m.d.sync += passing[-1].eq(passing[-2])
            m.d.comb += [
                widen.word.eq(Mux(read.operands[1], own, 0)),
                widen.element.eq(read.widen),
                adder.a.eq(passing[-1]),
                adder.b.eq(widen.wide),
                adder.way.eq(tokens[_READ + Widen.LATENCY].way),
                rounder.sums.word_select(k, 32).eq(adder.sum),
            ]
        end, o = tokens[-1], self.o
        lower = Signal(16 * lanes, reset_less=True)
        with m.If(end.beat & ~end.second):
            m.d.sync += lower.eq(rounder.halves)
        m.d.comb += [
            self.valid.eq(end.beat & (~end.rounds | end.second | end.last)),
            o.data.eq(rounder.wide),
            o.last.eq(end.last),
            o.final.eq(end.final),
            o.send.eq(end.send),
            o.store.eq(end.store),
            # Rounded beats come every other cycle, so a rounded frame may leave only with its last
            # beat.
            o.ready.eq(Mux(end.rounds, end.last, end.first)),
        ]
        with m.If(end.rounds):
            m.d.comb += o.data.eq(Mux(end.second, Cat(lower, rounder.halves), Cat(rounder.halves)))
