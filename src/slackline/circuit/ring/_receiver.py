"""A ring NIC's receiver: it checks the predecessor's frames and keeps each in a slot by number."""

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from slackline.circuit.frame import ALL_REDUCE_SUM, Beat, FrameReader, after, behind
from slackline.circuit.options import ELEMENTS, RingOptions
from slackline.circuit.ring._layouts import Arrived, Key
from slackline.circuit.ring._place import Place
from slackline.wire import FIRST_SEQUENCE, MAGIC, VERSION, FrameFlag, FrameKind

__all__ = ["EVENTS", "RingReceiver"]

EVENTS = ("accepted", "malformed", "foreign", "repeated", "unordered")
"""The possible outcomes for a frame; exactly one applies, unless the frame is a grant request."""

_KEPT = ("dtype", "offset", "total", "length")


class RingReceiver(wiring.Component):
    """A receiver of DATA frames, which keeps payloads in slots until the datapath takes them.

    Virtual channel 0 has partial sums, channel 1 final sums. Each channel has its own sequence
    numbers and slots, and frames take the slots in turn. The payload is written to the
    slot as it comes if the header is valid, the number is one of the `slots` numbers from `base`
    on, and the frame has not `arrived` before. A frame is accepted when it is complete, so a
    damaged frame has no effect.

    i           stream of Beat, always ready
    base        of each channel: the number of the oldest frame whose slot is not free again
    arrived     of each channel: bit k tells that frame base + k has arrived
    there       of each channel: the next frame to fetch is in its slot
    look, head  `head` is the header of that frame of channel `look`, in the same cycle
    fetched     of each channel: that frame is taken
    released    of each channel: the slot of frame `base` is free again
    address     the beat in the slot of frame `base` of channel `side`; `word` is its data, a cycle
                later
    changed     of each channel: an ACK is due to the sender
    asks        stream of Key: operations that the predecessor wants granted
    events      a pulse for each frame: see EVENTS
    """

    def __init__(self, options: RingOptions) -> None:
        self.options = options
        super().__init__(
            {
                "i": In(stream.Signature(Beat(options.lanes))),
                "place": In(Place()),
                "base": Out(32, init=FIRST_SEQUENCE).array(2),
                "arrived": Out(options.slots).array(2),
                "there": Out(2),
                "look": In(1),
                "head": Out(Arrived()),
                "fetched": In(2),
                "released": In(2),
                "side": In(1),
                "address": In(range(options.slot_beats)),
                "word": Out(32 * options.lanes),
                "changed": Out(2),
                "asks": Out(stream.Signature(Key())),
                "events": Out(data.StructLayout(dict.fromkeys(EVENTS, 1))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        options = self.options
        m.submodules.reader = reader = FrameReader(options)
        m.d.comb += [
            self.i.ready.eq(1),
            reader.beat.eq(self.i.payload),
            reader.taken.eq(self.i.valid),
        ]
        slot_bits = ceil_log2(options.slots)
        place = data.StructLayout({"slot": slot_bits, "side": 1})
        now, kept = Signal(place), Signal(place)
        side, fresh = Signal(), Signal()
        self._base_slots = [Signal(slot_bits, name=f"base_slot_{side}") for side in range(2)]
        base_slot = Array(self._base_slots)[side]
        distance = behind(Array(self.base)[side], reader.header.sequence)
        m.d.comb += [
            now.slot.eq(base_slot + distance),
            # The bit is inverted because the flag is set for partial sums, which use channel 0.
            side.eq(~reader.header.flags[0]),
            now.side.eq(side),
            fresh.eq(self._fresh(reader.header.sequence, side)),
        ]

        # The results of the header's checks are known a cycle after `headed`, and `keep` is set a
        # cycle later.
        verdict = self._judge(m, reader)
        fits, before, near = Signal(), Signal(), Signal()
        deciding = Signal()
        keep = Signal(data.StructLayout(dict.fromkeys((*EVENTS, "asks"), 1)))
        info, number = Signal(Arrived()), Signal(32)
        m.d.sync += [
            deciding.eq(reader.headed),
            fits.eq(fresh),
            before.eq(distance[-1]),
            near.eq(reader.header.sequence.any() & (distance < options.slots)),
        ]
        header = Signal(reader.header.shape())
        at = Signal(place)
        m.d.sync += [header.eq(reader.header), at.eq(now)]
        with m.If(deciding):
            m.d.sync += [kept.eq(at), keep.as_value().eq(0), number.eq(header.sequence)]
            m.d.sync += [info[name].eq(header[name]) for name in _KEPT]
            m.d.sync += [info.key[name].eq(header[name]) for name in ("tag", "chunk")]
            with m.If(~verdict.intact):
                m.d.sync += keep.malformed.eq(1)
            with m.Elif(~verdict.ours):
                m.d.sync += keep.foreign.eq(1)
            with m.Elif(verdict.asks):
                m.d.sync += keep.asks.eq(1)
            with m.Elif(~verdict.right):
                m.d.sync += keep.malformed.eq(1)
            with m.Elif(fits):
                m.d.sync += keep.accepted.eq(1)
            with m.Else():
                # The frame is repeated: a frame within the window has arrived before, and a frame
                # before the window has even left its slot.
                known = header.sequence.any() & (before | near)
                m.d.sync += [keep.repeated.eq(known), keep.unordered.eq(~known)]

        self._buffer(m, reader, kept, keep.accepted)
        self._finish(m, reader, kept, keep, info, number)
        return m

    def _judge(self, m: Module, reader: FrameReader) -> data.View:
        """Return signals with the results of the header's checks, a cycle later."""
        header, place = reader.header, self.place
        verdict = Signal(data.StructLayout(dict.fromkeys(("intact", "ours", "right", "asks"), 1)))
        words = Cat(
            *(header.dtype == code for code in ELEMENTS if code.itemsize == 4),
            header.flags[0] & Cat(*(header.dtype == code for code in ELEMENTS)).any(),
        ).any()
        halves = Cat(*(header.dtype == code for code in ELEMENTS if code.itemsize == 2)).any()
        opening = (header.magic == MAGIC) & (header.version == VERSION)
        m.d.sync += [
            verdict.intact.eq(reader.intact & opening),
            verdict.ours.eq(
                (header.job == place.job)
                & (header.epoch == place.epoch)
                & (header.source == place.predecessor)
            ),
            verdict.asks.eq((header.kind == FrameKind.GRANT) & ~header.length.any()),
            verdict.right.eq(
                (header.kind == FrameKind.DATA)
                & (header.op == ALL_REDUCE_SUM)
                & (header.flags[8:] == place.plan)
                & ((header.flags[:8] & ~int(FrameFlag.PARTIAL)) == 0)
                & header.length.any()
                & (header.length <= self.options.payload_bytes)
                & ((words & ~header.length[:2].any()) | (halves & ~header.length[0]))
                & (words | ~header.flags[0])
            ),
        ]
        return verdict

    def _fresh(self, number: Value, side: Value) -> Value:
        """Return a signal: this frame number is in the receive window and has not arrived."""
        distance = behind(Mux(side, self.base[1], self.base[0]), number)
        arrived = Mux(side, self.arrived[1], self.arrived[0])
        bits = ceil_log2(self.options.slots)
        near = number.any() & (distance < self.options.slots)
        return near & ~arrived.bit_select(distance[:bits], 1)

    def _buffer(self, m: Module, reader: FrameReader, kept: data.View, accepted: Signal) -> None:
        """Write payload to the frame's slot, two cycles late, when the header has been checked."""
        options = self.options
        words = 2 * options.slots * options.slot_beats
        m.submodules.buffer = buffer = Memory(shape=32 * options.lanes, depth=words, init=[])
        write, read = buffer.write_port(), buffer.read_port()
        within = ceil_log2(options.slot_beats)
        late = data.StructLayout({"data": 32 * options.lanes, "count": within, "writes": 1})
        one, two = Signal(late), Signal(late)
        m.d.sync += [
            one.data.eq(self.i.payload.data),
            one.count.eq(reader.count),
            one.writes.eq(reader.writes),
            two.eq(one),
        ]
        first = Signal(range(options.slots))
        m.d.comb += [
            write.addr.eq(Cat(two.count, kept.slot, kept.side)),
            write.data.eq(two.data),
            write.en.eq(two.writes & accepted),
            first.eq(Mux(self.side, self._base_slots[1], self._base_slots[0])),
            read.addr.eq(Cat(self.address[:within], first, self.side)),
            read.en.eq(1),
            self.word.eq(read.data),
        ]

    def _finish(
        self,
        m: Module,
        reader: FrameReader,
        kept: data.View,
        keep: data.View,
        info: data.View,
        number: Value,
    ) -> None:
        """Raise a frame's event two cycles after `closing`; mark the slot of an accepted frame.

        By then an earlier copy of the same frame may have come, and may even have left its slot.
        """
        options = self.options
        header = reader.header
        bits = ceil_log2(options.beat_bytes)
        # The sum is one bit wider than the length, so that no length wraps.
        beats = ((header.length + (options.beat_bytes - 1)) >> bits)[:32]
        damaged, whole, closed, done = (Signal(name=n) for n in ("bad", "all", "shut", "done"))
        m.d.sync += [
            damaged.eq(self.i.payload.bad),
            whole.eq(
                reader.intact
                & (reader.count == beats)
                & (reader.cut != header.length.any())
                & ~damaged
            ),
            closed.eq(reader.closing),
            done.eq(closed),
        ]
        good, fresh = Signal(), Signal()
        m.d.sync += [good.eq(whole), fresh.eq(self._fresh(number, kept.side))]
        m.submodules.infos = infos = Memory(shape=Arrived(), depth=2 * options.slots, init=[])
        store, look = infos.write_port(), infos.read_port(domain="comb")
        m.submodules.asked = asked = SyncFIFO(width=Key().size, depth=4)
        m.d.comb += [
            store.addr.eq(kept),
            store.data.eq(info),
            asked.w_data.eq(info.key),
            self.asks.payload.as_value().eq(asked.r_data),
            self.asks.valid.eq(asked.r_rdy),
            asked.r_en.eq(self.asks.ready),
        ]
        with m.If(done):
            with m.If(~good):
                m.d.comb += self.events.malformed.eq(1)
            with m.Elif(keep.asks):
                # A request may be lost when the queue is full, because the predecessor asks again.
                m.d.comb += asked.w_en.eq(1)
            with m.Else():
                m.d.comb += [self.events[name].eq(keep[name]) for name in EVENTS]
                with m.If(keep.accepted & ~fresh):
                    m.d.comb += [self.events.accepted.eq(0), self.events.repeated.eq(1)]
        m.d.comb += store.en.eq(self.events.accepted)

        pointers = []
        for side in range(2):
            fetched = Signal(range(options.slots + 1), name=f"fetched_{side}")
            base, arrived = self.base[side], self.arrived[side]
            base_slot = self._base_slots[side]
            mine = kept.side == side
            taken = Signal(name=f"taken_{side}")
            m.d.comb += taken.eq(self.events.accepted & mine)
            marked = arrived | Mux(taken, 1 << (kept.slot - base_slot)[: len(kept.slot)], 0)
            m.d.sync += [
                arrived.eq(Mux(self.released[side], marked >> 1, marked)),
                base.eq(Mux(self.released[side], after(base), base)),
                base_slot.eq(base_slot + self.released[side]),
                fetched.eq(fetched + self.fetched[side] - self.released[side]),
            ]
            told = (self.events.accepted | self.events.repeated) & mine
            pointers.append((base_slot + fetched)[: len(kept.slot)])
            m.d.comb += [
                self.there[side].eq(Cat(arrived, 0).bit_select(fetched, 1)),
                self.changed[side].eq(told | self.released[side]),
            ]
        m.d.comb += [
            look.addr.eq(Cat(Mux(self.look, pointers[1], pointers[0]), self.look)),
            self.head.eq(look.data),
        ]
