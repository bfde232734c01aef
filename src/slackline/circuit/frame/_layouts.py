"""Layouts of a frame in a circuit: its beats, and the header of `slackline.wire`."""

from amaranth.hdl import Value
from amaranth.lib import data

from slackline.circuit.options import ELEMENTS, Element
from slackline.wire import FIELDS, Collective, ReduceOp

__all__ = ["ALL_REDUCE_SUM", "HEADER", "Beat", "Frame", "element_of"]


class Beat(data.StructLayout):
    """The layout of a beat of a frame: the word that moves in one cycle.

    A frame is a header of 64 bytes, then the payload, filled with zeros to whole beats. `last`
    marks the frame's last beat. `bad`, valid with `last`, says that the MAC found the frame
    damaged.
    """

    def __init__(self, lanes: int) -> None:
        super().__init__({"data": 32 * lanes, "last": 1, "bad": 1})


HEADER = data.StructLayout({field.name: 8 * field.width for field in FIELDS})
"""The frame header's layout, little endian: bit 0 is the lowest bit of the first byte."""

for _field in FIELDS:
    assert HEADER[_field.name].offset == 8 * _field.offset

ALL_REDUCE_SUM = Collective.ALL_REDUCE << 4 | ReduceOp.SUM
"""The header's `op` for all-reduce with sum, the only operation that circuits reduce."""


class Frame(data.StructLayout):
    """The header fields that must be equal in all ranks' frames; `final` marks a message's end."""

    def __init__(self) -> None:
        super().__init__(
            {
                "dtype": 8,
                "tag": 64,
                "sequence": 32,
                "offset": 64,
                "total": 64,
                "length": 32,
                "flags": 16,
                "final": 1,
            }
        )


def element_of(dtype: Value) -> Value:
    """Return the two-bit Element code of a frame's `dtype`, which must be one of ELEMENTS."""
    code: Value = (dtype == _code(Element.INT32)) * Element.INT32
    for element in (Element.BFLOAT16, Element.FLOAT16):
        code = code | (dtype == _code(element)) * element
    return code[:2]


def _code(element: Element) -> int:
    return next(int(dtype) for dtype, each in ELEMENTS.items() if each is element)
