"""The arithmetic of one lane: a pipelined adder of fp32 or int32, with a sum a cycle."""

from types import SimpleNamespace

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from slackline.circuit.options import CANONICAL_NAN, WAY_BITS, Way

__all__ = ["Adder", "registers"]

_SUM_BITS = 28
"""Bits of the internal sum: a carry, 24 bits of significand, and the guard, round and sticky
bits."""


def registers(m: Module, **values: Value) -> SimpleNamespace:
    """Add a register for each value; return the registers, which hold the values one cycle later.

    The registers are attributes of the result, under the names of the values.
    """
    later = SimpleNamespace()
    for name, value in values.items():
        held = Signal(Value.cast(value).shape(), name=name, reset_less=True)
        m.d.sync += held.eq(value)
        setattr(later, name, held)
    return later


class Adder(wiring.Component):
    """A pipelined adder: `sum` is a + b, LATENCY cycles later; a new pair may come in every cycle.

    With `way` FLOAT, the words are IEEE 754 binary32, added with round to nearest even. Subnormals
    are kept, and every NaN comes out as CANONICAL_NAN. With WRAP, the words are 32-bit integers and
    wrap. The adder has no handshake and never stalls; Lanes puts adders
    behind streams.

    The pipeline has these stages:

        1 compare   3 subtract exponents   6 add       8 clamp the shift   11 round
        2 swap      4-5 align              7 count     9-10 normalise      12 choose

    The twin (bit-exact Python model) is slackline.circuit.twins.add.
    """

    LATENCY = 12

    def __init__(self) -> None:
        super().__init__({"a": In(32), "b": In(32), "way": In(WAY_BITS), "sum": Out(32)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        r = registers(m, a1=self.a, b1=self.b, less1=self.a[:31] < self.b[:31], way1=self.way)
        r = registers(
            m,
            big2=Mux(r.less1, r.b1, r.a1),
            small2=Mux(r.less1, r.a1, r.b1),
            way2=r.way1,
            whole2=_whole(r.a1, r.b1, r.way1),
        )
        r = self._unpack(m, r)
        # Alignment shifts bits out at the right end; the sticky bit records whether one of them was
        # set.
        aligned, sticky = _shift_right(Cat(Const(0, 3), r.small3), r.distance3[3:], 8)
        r = registers(m, **_on(r, 4), aligned4=aligned, sticky4=sticky, distance4=r.distance3[:3])
        aligned, sticky = _shift_right(r.aligned4, r.distance4, 1)
        r = registers(m, **_on(r, 5), small5=Cat(aligned[0] | sticky | r.sticky4, aligned[1:]))
        large = Cat(Const(0, 3), r.large5)
        total = Mux(r.subtract5, large - r.small5, large + r.small5)[:_SUM_BITS]
        r = registers(m, **_on(r, 6), total6=total)
        r = registers(m, **_on(r, 7), total7=r.total6, zeros7=_leading_zeros(m, r.total6))
        # A subnormal has exponent 1 and no leading one, so the shift must not go below that
        # exponent.
        cannot = r.zeros7 > r.exponent7
        shift = Mux(cannot, r.exponent7, r.zeros7)[:5]
        r = registers(
            m,
            bypass8=r.bypass7,
            other8=r.other7,
            total8=r.total7,
            shift8=shift,
            exponent8=(r.exponent7 + 1 - shift)[:8],
            # IEEE 754 defines x - x as +0 when rounding to nearest.
            sign8=r.sign7 & ~(r.subtract7 & (r.zeros7 == _SUM_BITS)),
        )
        r = registers(
            m,
            **_on(r, 9),
            total9=_shift_left(r.total8, r.shift8[3:], 8),
            shift9=r.shift8[:3],
            exponent9=r.exponent8,
        )
        r = registers(
            m, **_on(r, 10), total10=_shift_left(r.total9, r.shift9, 1), exponent10=r.exponent9
        )
        up = r.total10[3] & (r.total10[:3].any() | r.total10[4])
        field = Mux(r.total10[-1], r.exponent10, 0)
        r = registers(m, **_on(r, 11), packed11=(Cat(r.total10[4:27], field) + up)[:32])
        # Rounding may carry into the exponent and so turn the largest number into infinity.
        infinite = r.packed11[23:] >= 255
        magnitude = Mux(infinite, 255 << 23, r.packed11[:31])
        m.d.sync += self.sum.eq(Mux(r.bypass11, r.other11, Cat(magnitude[:31], r.sign11)))
        return m

    def _unpack(self, m: Module, r: SimpleNamespace) -> SimpleNamespace:
        """Build stage 3: split the operands, and compute the results that bypass the addition.

        Significands and exponents go on to the addition. Integer sums, NaNs and infinities bypass
        it.
        """
        big, small = r.big2, r.small2
        e_big, e_small = big[23:31], small[23:31]
        normal_big, normal_small = e_big.any(), e_small.any()
        exponent = Mux(normal_big, e_big, 1)
        distance = (exponent - Mux(normal_small, e_small, 1))[:8]
        subtract = big[31] ^ small[31]
        # The larger magnitude is NaN or infinite whenever either operand is.
        special = e_big.all()
        invalid = big[:23].any() | (subtract & e_small.all())
        return registers(
            m,
            sign3=big[31],
            subtract3=subtract,
            exponent3=exponent,
            large3=Cat(big[:23], normal_big),
            small3=Cat(small[:23], normal_small),
            distance3=Mux(distance[5:].any(), 31, distance)[:5],
            bypass3=special | (r.way2 != Way.FLOAT),
            other3=Mux(r.way2 != Way.FLOAT, r.whole2, Mux(invalid, CANONICAL_NAN, big)),
        )


_CARRIED = {
    4: ("sign", "subtract", "exponent", "large", "bypass", "other"),
    5: ("sign", "subtract", "exponent", "large", "bypass", "other"),
    6: ("sign", "subtract", "exponent", "bypass", "other"),
    7: ("sign", "subtract", "exponent", "bypass", "other"),
    9: ("sign", "bypass", "other"),
    10: ("sign", "bypass", "other"),
    11: ("sign", "bypass", "other"),
}
"""The values that each stage copies unchanged from the stage before."""


def _on(r: SimpleNamespace, stage: int) -> dict[str, Value]:
    return {f"{name}{stage}": getattr(r, f"{name}{stage - 1}") for name in _CARRIED[stage]}


def _whole(a: Value, b: Value, way: Value) -> Value:
    """Return the sum of two words in the ways other than FLOAT: only WRAP so far."""
    return (a + b)[:32]


def _shift_right(value: Value, by: Value, unit: int) -> tuple[Value, Value]:
    """Return `value` shifted right by `by` times `unit`, and whether a one was shifted out."""
    sticky: Value = Const(0)
    for k in range(len(by)):
        places = unit << k
        sticky |= by[k] & value[:places].any()
        value = Mux(by[k], value >> places, value)
    return value, sticky


def _shift_left(value: Value, by: Value, unit: int) -> Value:
    width = len(value)
    for k in range(len(by)):
        value = Mux(by[k], value << (unit << k), value)[:width]
    return value


def _leading_zeros(m: Module, value: Value) -> Value:
    """Return a signal: the number of leading zeros of `value`; the width of `value` for 0."""
    width = len(value)
    count = Signal(range(width + 1))
    m.d.comb += count.eq(width)
    for k in range(width):
        with m.If(value[k]):
            m.d.comb += count.eq(width - 1 - k)
    return count
