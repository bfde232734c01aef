"""Parallel adders (lanes) behind a stream: 1 to 16 words of 32 bits a beat."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from slackline.circuit.datapath._adder import Adder
from slackline.circuit.datapath._elements import is_half, way_of
from slackline.circuit.datapath._halves import Widen
from slackline.circuit.options import ELEMENT_BITS, WAY_BITS, check_lanes
from slackline.circuit.proof import claim, ones

__all__ = ["Lanes", "Operands", "chosen_words"]

_ROOM = 32
"""The number of results that the pipeline and the buffer behind it hold together. The number
exceeds the pipeline's latency, so that a reader that is always ready gets a result a cycle."""


class Operands(data.StructLayout):
    """Two beats to add and their element type: {a: 32 bits a lane, b: 32 bits a lane, element}."""

    def __init__(self, lanes: int) -> None:
        super().__init__({"a": 32 * lanes, "b": 32 * lanes, "element": ELEMENT_BITS})


class Lanes(wiring.Component):
    """Parallel adders behind a stream: `o` gives a + b of each pair of beats from `i`, in order.

    i  stream of Operands(lanes)
    o  stream of 32 bits a lane

    FLOAT32 and INT32 give one beat of sums for each pair, one a cycle, after LATENCY cycles and the
    buffer's two. A 16-bit type gives two beats of fp32 for a pair of beats with 2 x `lanes`
    elements, the sums of the first half of the elements first; `o` then gives one beat a cycle. The
    adders never stall: a pair is taken only when the buffer has room for the sum.

    The twin (bit-exact Python model) is slackline.circuit.twins.lanes.
    """

    LATENCY = Widen.LATENCY + Adder.LATENCY

    def __init__(self, lanes: int) -> None:
        self.lanes = check_lanes(lanes)
        super().__init__(
            {
                "i": In(stream.Signature(Operands(lanes))),
                "o": Out(stream.Signature(32 * lanes)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        element = self.i.payload.element
        half = is_half(element)
        second = Signal()
        room = Signal(range(_ROOM + 1), init=_ROOM)
        issue, done = Signal(), Signal()
        m.d.comb += [
            issue.eq(self.i.valid & room.any()),
            self.i.ready.eq(room.any() & (second | ~half)),
            done.eq(self.o.valid & self.o.ready),
        ]
        m.d.sync += room.eq(room - issue + done)
        with m.If(issue):
            m.d.sync += second.eq(half & ~second)

        m.submodules.results = results = SyncFIFOBuffered(width=32 * self.lanes, depth=_ROOM)
        under_way = Signal(self.LATENCY)
        m.d.sync += under_way.eq(Cat(issue, under_way))
        m.d.comb += [
            results.w_en.eq(under_way[-1]),
            self.o.payload.eq(results.r_data),
            self.o.valid.eq(results.r_rdy),
            results.r_en.eq(self.o.ready),
        ]
        claim(
            m,
            platform,
            # A result's place in the buffer is reserved in the cycle in which its pair is taken.
            room + results.level + ones(under_way) == _ROOM,
            results.r_rdy | (results.level <= 1),
            ~results.w_en | results.w_rdy,
        )
        ways = [way_of(element)]
        for k in range(Widen.LATENCY):
            ways.append(Signal(WAY_BITS, name=f"way_{k}"))
            m.d.sync += ways[-1].eq(ways[-2])
        a_words = chosen_words(self.i.payload.a, second, half)
        b_words = chosen_words(self.i.payload.b, second, half)
        for k in range(self.lanes):
            m.submodules[f"adder_{k}"] = adder = Adder()
            for name, word, side in (("a", a_words[k], adder.a), ("b", b_words[k], adder.b)):
                m.submodules[f"widen_{name}_{k}"] = widen = Widen()
                m.d.comb += [widen.word.eq(word), widen.element.eq(element), side.eq(widen.wide)]
            m.d.comb += adder.way.eq(ways[-1])
            m.d.comb += results.w_data.word_select(k, 32).eq(adder.sum)
        return m


def chosen_words(beat: Value, second: Value, half: Value) -> list[Value]:
    """Return the operand of each lane in `beat`: a 32-bit word, or with `half` a 16-bit element.

    With `second`, the elements are those of the beat's second half, otherwise the elements of the
    first half.
    """
    lanes = len(beat) // 32
    halves = [
        Mux(second, beat.word_select(lanes + k, 16), beat.word_select(k, 16)) for k in range(lanes)
    ]
    return [Mux(half, halves[k], beat.word_select(k, 32)) for k in range(lanes)]
