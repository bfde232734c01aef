"""A replay buffer of sums, which sends a lost sum again without adding anything twice."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from slackline.circuit.frame import Beat
from slackline.circuit.options import NodeOptions
from slackline.circuit.proof import ReplayedSums, claim

__all__ = ["ReplayBuffer"]


class ReplayBuffer(wiring.Component):
    """A buffer that passes reduced frames on, keeps the last `slots` frames, and repeats them.

    i, o    streams of Beat; frames that pass are not delayed
    begin   a frame that `i` will give has begun; `sequence` is its number
    again   a stream for each port: the number of a frame that the port wants again
    resent  a pulse: a frame is sent again

    A request waits for the end of the current frame; lower ports go first. A request for a frame
    that is no longer kept, or not there yet, has no effect. A repeated frame leaves at a rate of a
    beat every two cycles.
    """

    def __init__(self, options: NodeOptions, ahead: int) -> None:
        """Size the queue for up to `ahead` cycles from `begin` to a frame's first beat."""
        self.options = options
        self.ahead = ahead
        beats = stream.Signature(Beat(options.lanes))
        super().__init__(
            {
                "i": In(beats),
                "o": Out(beats),
                "begin": In(1),
                "sequence": In(32),
                "again": In(stream.Signature(32, always_ready=True)).array(options.ports),
                "resent": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        options = self.options
        slot_bits = ceil_log2(options.slots)
        frame_beats = 1 << ceil_log2(options.header_beats + options.slot_beats)
        m.submodules.sums = sums = Memory(
            shape=Beat(options.lanes), depth=options.slots * frame_beats, init=[]
        )
        m.submodules.numbers = numbers = Memory(shape=32, depth=options.slots, init=[])
        m.submodules.begun = begun = SyncFIFO(width=32, depth=2 * self.ahead)
        write, read = sums.write_port(), sums.read_port()
        keep, look = numbers.write_port(), numbers.read_port(domain="comb")
        kept = Signal(options.slots)
        beat = Signal(range(frame_beats))
        asked, wanted = Signal(), Signal(32)
        m.d.comb += [begun.w_en.eq(self.begin), begun.w_data.eq(self.sequence)]

        moved = Signal()
        slot = begun.r_data[:slot_bits]
        m.d.comb += [
            write.addr.eq(Cat(beat, slot)),
            write.data.eq(self.i.payload),
            read.addr.eq(Cat(beat, wanted[:slot_bits])),
            read.en.eq(1),
            keep.addr.eq(slot),
            keep.data.eq(begun.r_data),
            look.addr.eq(wanted[:slot_bits]),
        ]
        self._requests(m, asked, wanted)
        with m.FSM() as machine:
            with m.State("PASS"):
                m.d.comb += [
                    self.o.payload.eq(self.i.payload),
                    self.o.valid.eq(self.i.valid),
                    self.i.ready.eq(self.o.ready),
                    moved.eq(self.i.valid & self.o.ready),
                    write.en.eq(moved),
                ]
                with m.If(moved):
                    m.d.sync += beat.eq(beat + 1)
                    with m.If(self.i.payload.last):
                        m.d.comb += [begun.r_en.eq(1), keep.en.eq(1)]
                        m.d.sync += [beat.eq(0), kept.bit_select(slot, 1).eq(1)]
                # A stream may not withdraw `valid`, so a request waits for a cycle without a frame,
                # or for the last beat of a frame.
                ends = moved & self.i.payload.last
                with m.If(asked & (ends | (~self.i.valid & (beat == 0)))):
                    m.next = "LOOK"
            with m.State("LOOK"):
                there = kept.bit_select(wanted[:slot_bits], 1) & (look.data == wanted)
                with m.If(there):
                    m.d.comb += self.resent.eq(1)
                    m.next = "READ"
                with m.Else():
                    m.d.sync += asked.eq(0)
                    m.next = "PASS"
            with m.State("READ"):
                m.next = "GIVE"
            with m.State("GIVE"):
                m.d.comb += [self.o.payload.eq(read.data), self.o.valid.eq(1)]
                with m.If(self.o.ready):
                    m.d.sync += beat.eq(beat + 1)
                    m.next = "READ"
                    with m.If(read.data.last):
                        m.d.sync += [beat.eq(0), asked.eq(0)]
                        m.next = "PASS"
        # The requested number does not change while its frame is being sent.
        claim(m, platform, asked | machine.ongoing("PASS"))
        if platform == "formal":
            ReplayedSums(sums, numbers, kept, slot_bits).claim(
                m,
                platform,
                passing=self.i.valid,
                numbered=begun.r_rdy,
                moved=moved,
                number=begun.r_data,
                beat=beat,
                payload=self.i.payload,
                idle=machine.ongoing("PASS"),
                looks=machine.ongoing("LOOK"),
                gives=machine.ongoing("GIVE"),
                wanted=wanted,
                read=read.data,
            )
        return m

    def _requests(self, m: Module, asked: Signal, wanted: Signal) -> None:
        """Choose the next request: the request of the lowest port that has any.

        When a port has `slots` requests waiting, its further requests are lost.
        """
        waiting = []
        for port, again in enumerate(self.again):
            m.submodules[f"requests_{port}"] = requests = SyncFIFO(
                width=32, depth=self.options.slots
            )
            m.d.comb += [
                requests.w_data.eq(again.payload),
                requests.w_en.eq(again.valid),
            ]
            waiting.append(requests)
        with m.If(~asked):
            for port, requests in enumerate(waiting):
                with m.If(requests.r_rdy) if port == 0 else m.Elif(requests.r_rdy):
                    m.d.comb += requests.r_en.eq(1)
                    m.d.sync += [asked.eq(1), wanted.eq(requests.r_data)]
