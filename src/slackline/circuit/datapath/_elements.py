"""The columns of the table of element types, as signals."""

from amaranth.hdl import Cat, Const, Mux, Value

from slackline.circuit.options import WAY_BITS, Element

__all__ = ["is_half", "way_of"]


def is_half(element: Value) -> Value:
    """Return a signal: the type has 16 bits, so that a word holds two elements."""
    return Cat(element == each for each in Element if each.half).any()


def way_of(element: Value) -> Value:
    """Return a signal: the Way in which adders add words of the type."""
    code: Value = Const(0, WAY_BITS)
    for each in Element:
        code = code | Mux(element == each, Const(each.way, WAY_BITS), 0)
    return code[:WAY_BITS]
