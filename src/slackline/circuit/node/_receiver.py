"""A port's receiver, which checks frames, buffers valid frames, and counts dropped frames."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from slackline.circuit.frame import (
    ALL_REDUCE_SUM,
    Beat,
    Frame,
    FrameReader,
    after,
    behind,
    whole_items,
)
from slackline.circuit.node._sender import Repeat
from slackline.circuit.options import NodeOptions
from slackline.circuit.proof import assume, claim
from slackline.wire import MAGIC, VERSION, FrameKind

__all__ = ["EVENTS", "Receiver"]

EVENTS = ("accepted", "malformed", "foreign", "repeated", "unordered")
"""The possible outcomes for a frame; exactly one applies."""


class Receiver(wiring.Component):
    """A receiver of one rank's frames, which accepts complete, valid frames in sequence.

    i           stream of Beat; not ready at a frame's start while all slots are in use
    job, epoch  the values that frames must carry
    first       the number of the first frame after a reset
    absent      the port takes part in no sum: all its frames are `foreign`
    heads       stream of Frame: the headers of accepted frames, in order
    fill        accepted frames that have not `begun`; `finals` counts those that end a message
    address     of the buffer: beat within slot, slot; `word` is the beat there, a cycle later
    begun       a frame's reduction begins; with `begun_final`, the frame ends its message
    released    a slot is free again
    events      a pulse for each frame: see EVENTS
    again       stream of Repeat for `repeated` frames: the rank seems to lack the sums of those
                frames

    A frame is accepted or dropped two cycles after its last beat. A dropped frame changes nothing
    but the counter of its event: the expected sequence number stays, so the sender must send the
    frame again. A frame that comes twice is dropped too, so nothing is added twice. A frame with
    one of the last `slots` sequence numbers is `repeated`; a frame with any other number that is
    not expected is `unordered`.
    """

    def __init__(self, options: NodeOptions, rank: int) -> None:
        self.options, self.rank = options, rank
        self.address_bits = ceil_log2(options.slots * options.slot_beats)
        self._heads = SyncFIFOBuffered(width=Frame().size, depth=options.slots + 1)
        self.used = Signal(range(options.slots + 1))
        """Slots that are in use."""
        self.matched = Signal(range(options.slots + 2))
        """Frames whose header was taken and that have not begun; for claims only."""
        super().__init__(
            {
                "i": In(stream.Signature(Beat(options.lanes))),
                "enable": In(1),
                "job": In(32),
                "epoch": In(32),
                "first": In(32),
                "absent": In(1),
                "heads": Out(stream.Signature(Frame())),
                "fill": Out(range(options.slots + 1)),
                "finals": Out(range(options.slots + 1)),
                "address": In(self.address_bits),
                "word": Out(32 * options.lanes),
                "begun": In(1),
                "begun_final": In(1),
                "released": In(1),
                "again": Out(stream.Signature(Repeat(options), always_ready=True)),
                "events": Out(data.StructLayout(dict.fromkeys(EVENTS, 1))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        options = self.options
        m.submodules.reader = reader = FrameReader(options)
        used = self.used
        m.d.comb += [
            self.i.ready.eq(
                self.enable & (reader.in_payload | (used + reader.closing < options.slots))
            ),
            reader.beat.eq(self.i.payload),
            reader.taken.eq(self.i.valid & self.i.ready),
        ]
        slot = Signal(range(options.slots))
        self._buffer(m, reader, slot)
        self._decide(m, reader, slot)
        m.d.sync += used.eq(used + self.events.accepted - self.released)
        m.d.sync += self.fill.eq(self.fill + self.events.accepted - self.begun)
        self._claims(m, platform, reader.closing, reader.within)
        return m

    def _claims(self, m: Module, platform: object, closing: Signal, within: Value) -> None:
        """Add the port's invariants, for formal proofs.

        The proofs assume that a frame begins after its header was taken, and is released after it
        began.
        """
        used, matched = self.used, self.matched
        taken = self.heads.valid & self.heads.ready
        if platform == "formal":
            m.d.sync += matched.eq(matched + taken - self.begun)
        assume(
            m,
            platform,
            ~self.begun | matched.any(),
            ~self.released | self.begun | (used > self.fill),
            ~self.begun_final | (self.begun & self.finals.any()),
            ~self.begun | self.begun_final | (self.fill > self.finals),
        )
        claim(
            m,
            platform,
            used + closing <= self.options.slots,
            self.fill <= used,
            self.finals <= self.fill,
            self.fill == self._heads.level + matched,
            self._heads.r_rdy | (self._heads.level <= 1),
            # The frame that is coming in has a slot that no other frame uses.
            ~within | (used + closing < self.options.slots),
            ~self._heads.w_en | self._heads.w_rdy,
        )

    def _buffer(self, m: Module, reader: FrameReader, slot: Signal) -> None:
        options = self.options
        words = options.slots * options.slot_beats
        m.submodules.buffer = buffer = Memory(shape=32 * options.lanes, depth=words, init=[])
        write, read = buffer.write_port(), buffer.read_port()
        within = ceil_log2(options.slot_beats)
        m.d.comb += [
            write.addr.eq(Cat(reader.count[:within], slot)),
            write.data.eq(self.i.payload.data),
            write.en.eq(reader.writes),
            read.addr.eq(self.address),
            read.en.eq(1),
            self.word.eq(read.data),
        ]

    def _decide(self, m: Module, reader: FrameReader, slot: Signal) -> None:
        """Decide about a frame in the cycle after its last beat.

        The frame raises one event, and its header is passed on if the frame is accepted.
        """
        options = self.options
        header, closing = reader.header, reader.closing
        right, ours, end, damaged = Signal(), Signal(), Signal(65), Signal()
        begun, latest, expected = Signal(), Signal(32), Signal(32)
        m.d.comb += expected.eq(Mux(begun, after(latest), self.first))
        recent, late = Signal(), Signal()
        steps = behind(header.sequence, expected)
        m.d.sync += [
            right.eq(
                (header.magic == MAGIC)
                & (header.version == VERSION)
                & (header.kind == FrameKind.DATA)
                & (header.op == ALL_REDUCE_SUM)
                & (header.flags[:8] == 0)
                & (header.chunk == 0)
                & header.length.any()
                & (header.length <= options.payload_bytes)
                & whole_items(header.dtype, header.length)
            ),
            ours.eq(
                (header.job == self.job)
                & (header.epoch == self.epoch)
                & (header.source == self.rank)
                & ~self.absent
            ),
            end.eq(header.offset + header.length),
            damaged.eq(self.i.payload.bad),
            # The number of a frame is compared with the number expected after all earlier frames,
            # since a header is complete two cycles before its frame is decided about.
            recent.eq((steps != 0) & (steps <= options.slots) & header.sequence.any()),
            late.eq(steps != 0),
            self.again.payload.number.eq(header.sequence),
            self.again.payload.slot.eq(slot - steps),
        ]
        # The sum is one bit wider than the length, so that no length wraps.
        beats = ((header.length + (options.beat_bytes - 1)) >> ceil_log2(options.beat_bytes))[:32]
        whole = ~reader.cut & (reader.count == beats) & ~damaged & reader.intact
        m.submodules.heads = heads = self._heads
        head = data.View(Frame(), heads.w_data)
        with m.If(closing):
            with m.If(~whole):
                m.d.comb += self.events.malformed.eq(1)
            with m.Elif(~ours):
                m.d.comb += self.events.foreign.eq(1)
            with m.Elif(~right | (end > header.total)):
                m.d.comb += self.events.malformed.eq(1)
            with m.Elif(recent):
                m.d.comb += [self.events.repeated.eq(1), self.again.valid.eq(1)]
            with m.Elif(late):
                m.d.comb += self.events.unordered.eq(1)
            with m.Else():
                m.d.comb += [self.events.accepted.eq(1), heads.w_en.eq(1)]
                m.d.sync += [begun.eq(1), latest.eq(header.sequence), slot.eq(slot + 1)]
        final = end == header.total
        m.d.comb += [getattr(head, name).eq(header[name]) for name in _KEPT]
        m.d.comb += head.final.eq(final)
        m.d.sync += self.finals.eq(self.finals + (self.events.accepted & final) - self.begun_final)
        m.d.comb += [
            self.heads.payload.eq(data.View(Frame(), heads.r_data)),
            self.heads.valid.eq(heads.r_rdy),
            heads.r_en.eq(self.heads.ready),
        ]


_KEPT = ("dtype", "tag", "sequence", "offset", "total", "length", "flags")
