"""Conversion between 16-bit floats (bf16, fp16) and the fp32 of the lanes."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from slackline.circuit.datapath._adder import registers
from slackline.circuit.options import ELEMENT_BITS, Element

__all__ = ["Narrow", "Widen"]


class Widen(wiring.Component):
    """A converter to fp32: `wide` is the value of the element in `word`, LATENCY cycles later.

    The conversion is exact. A new element may come in every cycle. FLOAT32 and INT32 pass
    unchanged. For a 16-bit type, `word[:16]` is widened to fp32; a NaN keeps its sign and its
    payload's bits.

    The twin (bit-exact Python model) is slackline.circuit.twins.widen.
    """

    LATENCY = 2

    def __init__(self) -> None:
        super().__init__({"word": In(32), "element": In(ELEMENT_BITS), "wide": Out(32)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        zeros = Signal(range(11))
        m.d.comb += zeros.eq(10)
        for k in range(10):
            with m.If(self.word[k]):
                m.d.comb += zeros.eq(9 - k)
        r = registers(m, word1=self.word, element1=self.element, zeros1=zeros)
        field, fraction = r.word1[10:15], r.word1[:10]
        # A subnormal's leading one becomes the implicit one of fp32. The exponent is then -15 minus
        # the number of zeros above the leading one.
        exponent = Mux(
            field.any(), Mux(field.all(), 255, field + 112), Mux(fraction.any(), 112 - r.zeros1, 0)
        )
        normalised = Mux(field.any(), fraction, (fraction << (r.zeros1 + 1))[:10])
        with m.Switch(r.element1):
            with m.Case(Element.BFLOAT16):
                m.d.sync += self.wide.eq(Cat(Const(0, 16), r.word1[:16]))
            with m.Case(Element.FLOAT16):
                m.d.sync += self.wide.eq(
                    Cat(Const(0, 13), normalised[:10], exponent[:8], r.word1[15])
                )
            with m.Default():
                m.d.sync += self.wide.eq(r.word1)
        return m


class Narrow(wiring.Component):
    """A converter from fp32: `half` is `wide` rounded to 16 bits, LATENCY cycles later.

    Rounding is to nearest, ties to even. `element` is BFLOAT16 or FLOAT16. The only NaN that may
    come in is CANONICAL_NAN, as an Adder gives it. Subnormals are kept, and numbers that are too
    large become infinite.

    The twin (bit-exact Python model) is slackline.circuit.twins.narrow.
    """

    LATENCY = 3

    def __init__(self) -> None:
        super().__init__({"wide": In(32), "element": In(ELEMENT_BITS), "half": Out(16)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        field = self.wide[23:31]
        subnormal = field < 113
        depth = (113 - field)[:8]
        r = registers(
            m,
            wide1=self.wide,
            element1=self.element,
            shift1=Mux(subnormal, Mux(depth > 12, 12, depth), 0)[:4],
            field1=Mux(subnormal, 0, field - 112)[:8],
        )
        significand = Cat(r.wide1[:23], r.wide1[23:31].any())
        shifted = significand >> r.shift1
        lost = ((shifted << r.shift1)[:24] != significand) & r.shift1.any()
        r = registers(
            m,
            wide2=r.wide1,
            element2=r.element1,
            field2=r.field1,
            kept2=shifted[12:23],
            below2=shifted[:12].any() | lost,
        )
        up = r.kept2[0] & (r.below2 | r.kept2[1])
        rounded = Cat(r.kept2[1:], r.field2) + up
        nan = r.wide2[23:31].all() & r.wide2[:23].any()
        small = Mux(rounded[10:] >= 31, Cat(Const(0, 9), nan, Const(31, 5)), rounded[:15])
        brain_up = r.wide2[15] & (r.wide2[:15].any() | r.wide2[16])
        brain = (r.wide2[16:] + (brain_up & ~nan))[:16]
        m.d.sync += self.half.eq(
            Mux(r.element2 == Element.BFLOAT16, brain, Cat(small[:15], r.wide2[31]))
        )
        return m
