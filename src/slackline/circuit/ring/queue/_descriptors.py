"""The descriptor queue: entries fetched from the host's memory, checked and handed to the NIC."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from slackline.circuit.frame import Beat
from slackline.circuit.options import ELEMENTS, RingOptions, sum_bytes
from slackline.circuit.proof import assume, claim
from slackline.circuit.registers import DESCRIPTOR, Code
from slackline.circuit.ring._layouts import Descriptor, DmaRequest, Key
from slackline.wire import FrameFlag

__all__ = ["ENTRIES_BITS", "DescriptorQueue", "Refusal", "entries_of"]

ENTRIES_BITS = 16
"""Log2 of the entries of the longest queue."""

_AHEAD = 4
"""The number of descriptors that may be fetched before the NIC opens or refuses them."""

_TOTAL_BITS = 48


class _Entry(data.StructLayout):
    """A descriptor with two of its faults: a byte that must be 0 is not, or its read failed."""

    def __init__(self) -> None:
        super().__init__({"descriptor": Descriptor(), "reserved": 1, "unread": 1})


class Refusal(data.StructLayout):
    """A refused descriptor: the operation's Key, and the Code of the reason."""

    def __init__(self) -> None:
        super().__init__({"key": Key(), "code": 8})


def entries_of(bits: Value) -> Value:
    """Return 2 to the power of `bits`, a queue's entries; 0 if `bits` exceeds ENTRIES_BITS."""
    return Mux(bits[5:].any(), 0, (Const(1) << bits[:5])[: ENTRIES_BITS + 1])


class DescriptorQueue(wiring.Component):
    """A reader of the descriptor queue, which prefetches a few of the host's descriptors in order.

    ranks        the register: ranks of the ring
    base, bits   registers: the queue's address, a multiple of 64; log2 of its entries
    rung, value  a doorbell: the host has written `value` descriptors since the reset, modulo 2^32
    wrong        the value is impossible, and the doorbell is ignored
    tail, head   the number of descriptors that doorbells announced; the number of descriptors that
                 were opened or refused, so that their entries are free
    requests     stream of DmaRequest
    i            stream of Beat: the data of the descriptors, in order; always ready
    descriptors  stream of Descriptor: valid operations
    refusals     stream of Refusal

    The difference of `tail` and `head` never exceeds the number of the queue's entries. A
    descriptor is requested only while fewer than four requested descriptors are beyond `head`, so
    there is room for every answer.
    """

    def __init__(self, options: RingOptions) -> None:
        self.options = options
        super().__init__(
            {
                "ranks": In(16),
                "base": In(64),
                "bits": In(32),
                "rung": In(1),
                "value": In(32),
                "wrong": Out(1),
                "tail": Out(32),
                "head": Out(32),
                "requests": Out(stream.Signature(DmaRequest())),
                "i": In(stream.Signature(Beat(options.lanes))),
                "descriptors": Out(stream.Signature(Descriptor())),
                "refusals": Out(stream.Signature(Refusal())),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        entries = self._doorbell(m)
        asked = self._fetch(m)
        waiting = self._whole(m)
        held = self._hand_on(m, waiting)
        self._claim(m, platform, entries, asked, waiting.level + held)
        return m

    def _claim(
        self, m: Module, platform: object, entries: Value, asked: Value, here: Value
    ) -> None:
        """Add the invariants that neither the queue nor the buffer behind it overflows."""
        most = entries_of(self.bits)
        under_way = Signal(range(_AHEAD + 1))
        answered = self.i.valid & self.i.payload.last
        if platform == "formal":
            asks = self.requests.valid & self.requests.ready
            m.d.sync += under_way.eq(under_way + asks - answered)
        assume(m, platform, ~self.i.valid | under_way.any())
        fetched = (asked - self.head)[:32]
        claim(
            m,
            platform,
            ((self.tail - self.head)[:32] <= most),
            (entries == most) | (entries == 0),
            fetched <= (self.tail - self.head)[:32],
            fetched <= _AHEAD,
            fetched == under_way + here,
        )

    def _doorbell(self, m: Module) -> Value:
        """Take the value that the host writes to the doorbell; return the queue's entries.

        A value that goes back, or beyond the queue, is ignored.
        """
        entries = Signal(ENTRIES_BITS + 1)
        rung, value = Signal(), Signal(32)
        told, open_ = Signal(32), Signal(32)
        m.d.sync += [entries.eq(entries_of(self.bits)), rung.eq(self.rung), value.eq(self.value)]
        m.d.comb += [
            told.eq(value - self.head),
            open_.eq(self.tail - self.head),
            self.wrong.eq(rung & ((told > entries) | (told < open_))),
        ]
        with m.If(rung & ~self.wrong):
            m.d.sync += self.tail.eq(value)
        return entries

    def _fetch(self, m: Module) -> Value:
        """Request the next descriptor while there is room; return the count of requests."""
        asked = Signal(32)
        ahead = Signal(32)
        shift = ceil_log2(DESCRIPTOR.size)
        mask = Signal(ENTRIES_BITS)
        m.d.sync += mask.eq(entries_of(self.bits) - 1)
        request = self.requests.payload
        m.d.comb += [
            ahead.eq(asked - self.head),
            self.requests.valid.eq((asked != self.tail) & (ahead < _AHEAD)),
            request.address.eq(self.base + ((asked & mask) << shift)),
            request.bytes.eq(DESCRIPTOR.size),
        ]
        with m.If(self.requests.valid & self.requests.ready):
            m.d.sync += asked.eq(asked + 1)
        return asked

    def _whole(self, m: Module) -> SyncFIFO:
        """Assemble beats into descriptors; return the FIFO that holds them.

        A bit beside each descriptor tells whether any byte that must be 0 is not 0, and another one
        whether the descriptor's read failed.
        """
        bits = 8 * DESCRIPTOR.size
        i = self.i
        before = Signal(bits)
        whole = Cat(before, i.payload.data)[-bits:]
        m.d.comb += i.ready.eq(1)
        beats = max(1, DESCRIPTOR.size // self.options.beat_bytes)
        came = Signal(range(beats + 1))
        with m.If(i.valid):
            m.d.sync += [before.eq(whole), came.eq(came + (came != beats))]
            with m.If(i.payload.last):
                m.d.sync += came.eq(0)
        shape = _Entry()
        m.submodules.waiting = waiting = SyncFIFO(width=shape.size, depth=_AHEAD)
        made = Signal(shape)
        for each in DESCRIPTOR.fields:
            at = 8 * each.offset
            m.d.comb += made.descriptor[each.name].eq(whole[at : at + 8 * each.width])
        gaps = Cat(whole[8 * at : 8 * (at + size)] for at, size in DESCRIPTOR.gaps())
        m.d.comb += [
            made.reserved.eq(gaps.any()),
            made.unread.eq(i.payload.bad | (came + 1 != beats)),
            waiting.w_data.eq(made),
            waiting.w_en.eq(i.valid & i.payload.last),
        ]
        return waiting

    def _hand_on(self, m: Module, waiting: SyncFIFO) -> Value:
        """Check and hand on descriptors one by one; return a signal that is high during each."""
        entry, code = Signal(_Entry()), Signal(Code)
        given = Signal()
        descriptor = entry.descriptor
        m.d.comb += [
            self.descriptors.payload.eq(descriptor),
            self.refusals.payload.key.tag.eq(descriptor.tag),
            self.refusals.payload.key.chunk.eq(descriptor.chunk),
            self.refusals.payload.code.eq(code),
        ]
        with m.FSM() as fsm:
            with m.State("TAKE"):
                m.d.comb += waiting.r_en.eq(1)
                m.d.sync += entry.eq(waiting.r_data)
                with m.If(waiting.r_rdy):
                    m.next = "JUDGE"
            with m.State("JUDGE"):
                m.d.sync += code.eq(self._code(entry))
                m.next = "GIVE"
            with m.State("GIVE"):
                right = code == Code.DONE
                m.d.comb += [
                    self.descriptors.valid.eq(right),
                    self.refusals.valid.eq(~right),
                    given.eq(Mux(right, self.descriptors.ready, self.refusals.ready)),
                ]
                with m.If(given):
                    m.d.sync += self.head.eq(self.head + 1)
                    m.next = "TAKE"
        return ~fsm.ongoing("TAKE")

    def _code(self, entry: data.View) -> Value:
        """Return a signal: DONE if the descriptor is valid, else the Code of the first fault."""
        each = entry.descriptor
        halves = Cat(each.dtype == code for code in ELEMENTS if code.itemsize == 2).any()
        words = Cat(each.dtype == code for code in ELEMENTS if code.itemsize == 4).any()
        longest = {
            code.itemsize: self.options.payload_bytes
            * code.itemsize
            // sum_bytes(code, FrameFlag.PARTIAL)
            for code in ELEMENTS
        }
        total = each.total
        odd = Mux(halves, total[0], total[:2].any())
        bad_total = ~total.any() | total[_TOTAL_BITS:].any() | odd
        size = each.frame_bytes
        too_long = Mux(halves, size > longest[2], size > longest[4])
        bad_size = ~size.any() | size[:6].any() | too_long
        found: Value = Code.DONE
        for wrong, code in (
            (each.start >= self.ranks, Code.START),
            (bad_size, Code.FRAME_BYTES),
            (bad_total, Code.TOTAL),
            (~(halves | words), Code.DTYPE),
            (entry.reserved, Code.RESERVED),
            (entry.unread, Code.READ),
        ):
            found = Mux(wrong, code, found)
        return found
