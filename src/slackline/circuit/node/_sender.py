"""A port's sender, which reads frames from the node's sums: each in turn, and lost ones again."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from slackline.circuit.frame import Beat
from slackline.circuit.options import NodeOptions
from slackline.circuit.proof import claim

__all__ = ["Ended", "Repeat", "Sender", "sum_beats"]


def sum_beats(options: NodeOptions) -> int:
    """Return the beats of a slot for sums: those of the longest frame, up to a power of two."""
    return 1 << ceil_log2(options.header_beats + options.slot_beats)


class Repeat(data.StructLayout):
    """A port's request for a sum that it lacks: the sum's number and its slot."""

    def __init__(self, options: NodeOptions) -> None:
        super().__init__({"number": 32, "slot": ceil_log2(options.slots)})


class Ended(data.StructLayout):
    """A whole frame in a slot: its number, and the place of its last beat."""

    def __init__(self, options: NodeOptions) -> None:
        super().__init__({"number": 32, "end": range(sum_beats(options))})


class Sender(wiring.Component):
    """A sender of the frames in the slots of a SumBuffer, at the pace of its port.

    absent          the port takes no frames
    again           stream of Repeat: frames that the port wants again
    written, beat   whole frames that were written, modulo twice the slots; beats of the next frame
    moved           a beat is being written
    kept            a bit for each slot: it has held a whole frame
    slot            the slot whose `ended` is needed in this cycle
    ended           Ended of that slot
    place, en       the beat to read; `word` follows `en` by a cycle and then stays
    o               stream of Beat
    unsent          whole frames that have yet to be sent for the first time
    repeats         the frame in `slot` is sent again, so it must stay
    resent          a pulse: a frame is sent again

    A beat that was written in one cycle may be read in the next one. A request waits for the end of
    the frame that is being sent. When a port has `slots` requests waiting, its further requests are
    lost.
    """

    def __init__(self, options: NodeOptions) -> None:
        self.options = options
        slot_bits = ceil_log2(options.slots)
        self.wanted = Signal(32)
        """The number of the frame that is wanted again; for claims only."""
        self.sends = Signal()
        """A frame is sent for the first time, or none is sent; for claims only."""
        super().__init__(
            {
                "absent": In(1),
                "again": In(stream.Signature(Repeat(options), always_ready=True)),
                "written": In(slot_bits + 1),
                "beat": In(range(sum_beats(options))),
                "moved": In(1),
                "kept": In(options.slots),
                "slot": Out(slot_bits),
                "ended": In(Ended(options)),
                "place": Out(range(sum_beats(options))),
                "en": Out(1),
                "word": In(Beat(options.lanes)),
                "o": Out(stream.Signature(Beat(options.lanes))),
                "unsent": Out(slot_bits + 1),
                "repeats": Out(1),
                "resent": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        options = self.options
        slot_bits = ceil_log2(options.slots)
        repeat = Repeat(options)
        m.submodules.requests = requests = SyncFIFO(width=repeat.size, depth=options.slots)
        wanted = data.View(repeat, requests.r_data)
        m.d.comb += [
            requests.w_data.eq(self.again.payload),
            requests.w_en.eq(self.again.valid),
        ]
        sent, place, valid = Signal(slot_bits + 1), self.place, Signal()
        gives, ends = Signal(), Signal()
        m.d.comb += [
            self.unsent.eq(self.written - sent),
            self.en.eq(~valid | self.o.ready),
            self.o.valid.eq(valid),
            self.o.payload.eq(self.word),
        ]
        with m.If(self.en):
            m.d.sync += valid.eq(gives)
        with m.If(self.en & gives):
            m.d.sync += place.eq(Mux(ends, 0, place + 1))
        with m.FSM() as machine:
            with m.State("NEXT"):
                # Of the frame that is being written only the beats before `beat` are there.
                there = self.unsent.any() | (place < self.beat)
                first = place == 0
                m.d.comb += [
                    self.slot.eq(sent),
                    gives.eq(there & ~(first & requests.r_rdy) & ~self.absent),
                    ends.eq(self.unsent.any() & (place == self.ended.end)),
                ]
                with m.If(self.en & gives & ends):
                    m.d.sync += sent.eq(sent + 1)
                with m.If(first & requests.r_rdy):
                    m.next = "LOOK"
            with m.State("LOOK"):
                comes = (wanted.slot - sent)[:slot_bits] < self.unsent
                leaves = (self.written[:slot_bits] == wanted.slot) & (self.moved | self.beat.any())
                m.d.comb += [
                    self.slot.eq(wanted.slot),
                    self.resent.eq(
                        self.kept.bit_select(wanted.slot, 1)
                        & (self.ended.number == wanted.number)
                        & ~comes
                        & ~leaves
                        & ~self.absent
                    ),
                ]
                with m.If(self.resent):
                    m.next = "AGAIN"
                with m.Else():
                    m.d.comb += requests.r_en.eq(1)
                    m.next = "NEXT"
            with m.State("AGAIN"):
                m.d.comb += [
                    self.slot.eq(wanted.slot),
                    gives.eq(1),
                    ends.eq(place == self.ended.end),
                ]
                with m.If(self.en & ends):
                    m.d.comb += requests.r_en.eq(1)
                    m.next = "NEXT"
        m.d.comb += self.repeats.eq(machine.ongoing("AGAIN"))
        with m.If(self.absent):
            m.d.sync += sent.eq(self.written)
        if platform == "formal":
            m.d.comb += [
                self.wanted.eq(wanted.number),
                self.sends.eq(machine.ongoing("NEXT") & ~self.absent),
            ]
        claim(
            m,
            platform,
            ~machine.ongoing("LOOK") | (place == 0),
            machine.ongoing("NEXT") | requests.r_rdy,
        )
        return m
