"""A ring NIC's transmitter, which keeps frames until the successor has freed their slots."""

from types import SimpleNamespace

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from slackline.circuit.frame import ALL_REDUCE_SUM, HEADER, Beat
from slackline.circuit.options import RingOptions
from slackline.circuit.ring._datapath import Summed
from slackline.circuit.ring._layouts import Job, Key, compose, seal
from slackline.circuit.ring._place import Place
from slackline.circuit.ring._window import RingWindow
from slackline.wire import FrameKind

__all__ = ["RingTransmitter"]

_SKID = 8
"""Beats of the skid buffer: beats read from memory that the successor has not taken yet."""


class RingTransmitter(wiring.Component):
    """A transmitter that sends frames in order, and keeps frames to resend any that seem lost.

    begun, job  a frame is begun, and its job
    room        of each channel: a frame may be begun
    space       of each channel: a frame that enters the channel at this NIC may be begun
    claimed     a partial sum that enters here will be begun, and claims its slot now
    valid, i    the beats of the frame, each when it comes
    answer      stream of headers: ACKs of the successor
    inquiries   stream of Key: operations whose grant is asked of the successor
    timeout     cycles without progress until frames are sent again
    o           stream of Beat; `valid` stays high within a frame
    sent        a pulse: a frame leaves for the first time
    resent      a pulse: a frame leaves once more

    A frame that is sent again is not computed again: the transmitter reads it from its memory.
    """

    def __init__(self, options: RingOptions) -> None:
        self.options = options
        super().__init__(
            {
                "place": In(Place()),
                "begun": In(1),
                "job": In(Job(options)),
                "room": Out(2),
                "space": Out(2),
                "claimed": In(1),
                "valid": In(1),
                "i": In(Summed(options.lanes)),
                "answer": In(stream.Signature(HEADER, always_ready=True)),
                "inquiries": In(stream.Signature(Key())),
                "timeout": In(32),
                "o": Out(stream.Signature(Beat(options.lanes))),
                "sent": Out(1),
                "resent": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        options = self.options
        slots = options.slots
        slot_bits, within = ceil_log2(slots), ceil_log2(options.slot_beats)
        windows = [RingWindow(slots) for _ in range(2)]
        for side, window in enumerate(windows):
            m.submodules[f"window_{side}"] = window
            m.d.comb += [
                window.timeout.eq(self.timeout),
                window.begun.eq(self.begun & self.job.send & (self.job.final == side)),
                window.ready.eq(self.valid & self.i.send & self.i.ready & (self.i.final == side)),
                self.room[side].eq(window.room),
                self.space[side].eq(window.space),
                window.answered.eq(self.answer.valid & (self.answer.payload.flags[0] != side)),
                window.acknowledge.eq(self.answer.payload.acknowledge),
                window.arrived.eq(self.answer.payload.tag),
            ]

        # A final sum that enters here takes its slot when its frame begins. A partial sum that
        # enters here took its slot before the host's data were read.
        m.d.comb += [
            windows[0].claimed.eq(self.claimed),
            windows[0].redeems.eq(self.job.enters),
        ]
        shape = data.StructLayout({"header": HEADER, "beats": range(options.slot_beats + 1)})
        m.submodules.headers = headers = Memory(shape=shape, depth=2 * slots, init=[])
        keep, look = headers.write_port(), headers.read_port(domain="comb")
        question = self._seal(m, windows, keep)

        m.submodules.beats = beats = Memory(
            shape=32 * options.lanes, depth=2 * slots << within, init=[]
        )
        write, read = beats.write_port(), beats.read_port()
        at = [Signal(range(options.slot_beats), name=f"at_{side}") for side in range(2)]
        slot = [Signal(slot_bits, name=f"slot_{side}") for side in range(2)]
        moves = self.valid & self.i.send
        for side in range(2):
            with m.If(moves & (self.i.final == side)):
                m.d.sync += at[side].eq(at[side] + 1)
                with m.If(self.i.last):
                    m.d.sync += [at[side].eq(0), slot[side].eq(slot[side] + 1)]
        final = self.i.final
        m.d.comb += [
            write.addr.eq(Cat(Array(at)[final][:within], Array(slot)[final], final)),
            write.data.eq(self.i.data),
            write.en.eq(moves),
        ]
        self._send(m, windows, question, look, read)
        return m

    def _seal(self, m: Module, windows: list[RingWindow], keep: data.View) -> SimpleNamespace:
        """Add the checksum to each header of a frame or grant request; keep the frames' headers.

        The result is the grant request that waits to be sent.
        """
        options, job = self.options, self.job
        header = Signal(HEADER)
        asks, asked = Signal(), Signal(2)
        sends, kept = Signal(), Signal(2)
        beats = Signal(range(options.slot_beats + 1))
        numbers = Array([window.begun_number for window in windows])
        places = Array([window.begun_slot for window in windows])
        question = SimpleNamespace(
            valid=Signal(name="question_valid"),
            taken=Signal(name="question_taken"),
            header=Signal(HEADER, name="question_header"),
        )
        m.d.comb += [
            sends.eq(self.begun & job.send),
            asks.eq(self.inquiries.valid & ~sends & ~question.valid & ~asked.any()),
            self.inquiries.ready.eq(asks),
        ]
        compose(
            m,
            header,
            self.place,
            kind=Mux(sends, FrameKind.DATA, FrameKind.GRANT),
            op=Mux(sends, ALL_REDUCE_SUM, 0),
            dtype=Mux(sends, job.dtype, 0),
            tag=Mux(sends, job.key.tag, self.inquiries.payload.tag),
            chunk=Mux(sends, job.key.chunk, self.inquiries.payload.chunk),
            sequence=Mux(sends, numbers[job.final], 0),
            offset=Mux(sends, job.offset, 0),
            total=Mux(sends, job.total, 0),
            length=Mux(sends, job.length, 0),
            flags=Cat(sends & ~job.final, Const(0, 7), self.place.plan),
        )
        sealed = seal(m, header, sends | asks)
        place = data.StructLayout(
            {"slot": ceil_log2(options.slots), "final": 1, "beats": beats.shape()}
        )
        early, late = Signal(place), Signal(place)
        m.d.sync += [
            kept.eq(Cat(sends, kept)),
            asked.eq(Cat(asks, asked)),
            early.slot.eq(places[job.final]),
            early.final.eq(job.final),
            early.beats.eq(
                (job.length + (options.beat_bytes - 1)) >> ceil_log2(options.beat_bytes)
            ),
            late.eq(early),
        ]
        m.d.comb += [
            keep.addr.eq(Cat(late.slot, late.final)),
            keep.data.header.eq(sealed),
            keep.data.beats.eq(late.beats),
            keep.en.eq(kept[1]),
        ]
        with m.If(asked[1]):
            m.d.sync += [question.valid.eq(1), question.header.eq(sealed)]
        with m.If(question.taken):
            m.d.sync += question.valid.eq(0)
        return question

    def _send(
        self,
        m: Module,
        windows: list[RingWindow],
        question: SimpleNamespace,
        look: data.View,
        read: data.View,
    ) -> None:
        """Choose the next frame while another leaves, and read its beats into the skid buffer."""
        options = self.options
        slot_bits, within = ceil_log2(options.slots), ceil_log2(options.slot_beats)
        frame = data.StructLayout(
            {
                "header": HEADER,
                "beats": range(options.slot_beats + 1),
                "slot": slot_bits,
                "side": 1,
            }
        )
        chosen, current = Signal(frame), Signal(frame)
        waiting, active = Signal(), Signal()
        starts = Signal()
        side, number = Signal(), Signal(slot_bits)
        again = Signal()
        finals, partials = windows[1], windows[0]
        free = ~waiting
        fresh = finals.fresh | partials.fresh
        # New frames go first, so that repeats that come too early hold up no frame for ever. The
        # slots limit the new frames, and so the wait of a repeat.
        m.d.comb += [
            again.eq(~fresh & (partials.again | finals.again)),
            side.eq(Mux(fresh, finals.fresh, ~partials.again)),
            number.eq(
                Mux(
                    again,
                    Mux(side, finals.again_slot, partials.again_slot),
                    Mux(side, finals.fresh_slot, partials.fresh_slot),
                )
            ),
            look.addr.eq(Cat(number, side)),
        ]
        any_frame = again | fresh
        m.d.comb += question.taken.eq(free & question.valid)
        with m.If(starts):
            m.d.sync += waiting.eq(0)
        with m.If(question.taken):
            m.d.sync += [
                waiting.eq(1),
                chosen.header.eq(question.header),
                chosen.beats.eq(0),
            ]
        with m.Elif(free & any_frame):
            m.d.sync += [
                waiting.eq(1),
                chosen.header.eq(look.data.header),
                chosen.beats.eq(look.data.beats),
                chosen.slot.eq(number),
                chosen.side.eq(side),
            ]
            m.d.comb += [
                windows[0].taken.eq(~side & ~again),
                windows[1].taken.eq(side & ~again),
                windows[0].retaken.eq(~side & again),
                windows[1].retaken.eq(side & again),
                self.sent.eq(~again),
                self.resent.eq(again),
            ]

        m.submodules.skid = skid = SyncFIFO(width=Beat(options.lanes).size, depth=_SKID)
        room = Signal(range(_SKID + 1), init=_SKID)
        headers = Signal(range(options.header_beats + 1))
        beat, left = Signal(range(options.slot_beats)), Signal(range(options.slot_beats + 1))
        moves, ends = Signal(), Signal()
        word = 32 * options.lanes
        m.d.comb += [
            moves.eq(active & room.any()),
            ends.eq(moves & (headers + left == 1)),
            starts.eq(waiting & (ends | ~active)),
            read.addr.eq(Cat(beat[:within], current.slot, current.side)),
            read.en.eq(1),
        ]
        with m.If(ends):
            m.d.sync += active.eq(0)
        with m.If(moves):
            with m.If(headers.any()):
                m.d.sync += [
                    headers.eq(headers - 1),
                    current.header.as_value().eq(current.header.as_value() >> word),
                ]
            with m.Else():
                m.d.sync += [beat.eq(beat + 1), left.eq(left - 1)]
        with m.If(starts):
            m.d.sync += [
                active.eq(1),
                current.eq(chosen),
                headers.eq(options.header_beats),
                beat.eq(0),
                left.eq(chosen.beats),
            ]
        late = Signal(data.StructLayout({"moves": 1, "header": 1, "last": 1, "data": word}))
        m.d.sync += [
            late.moves.eq(moves),
            late.header.eq(headers.any()),
            late.last.eq(ends),
            late.data.eq(current.header.as_value()[:word]),
            room.eq(room - moves + (self.o.valid & self.o.ready)),
        ]
        made = Signal(Beat(options.lanes))
        m.d.comb += [
            made.data.eq(Mux(late.header, late.data, read.data)),
            made.last.eq(late.last),
            skid.w_data.eq(made),
            skid.w_en.eq(late.moves),
            self.o.payload.as_value().eq(skid.r_data),
            self.o.valid.eq(skid.r_rdy),
            skid.r_en.eq(self.o.ready),
        ]
