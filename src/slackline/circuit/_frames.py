"""Frames in a circuit: beats, and the header as the table of `slackline.wire` has it."""

from amaranth.hdl import Value
from amaranth.lib import data

from slackline.circuit._formats import ELEMENTS, Element
from slackline.wire import FIELDS, Collective, ReduceOp

__all__ = ["ALL_REDUCE_SUM", "HEADER", "Beat", "Frame", "element_of"]


class Beat(data.StructLayout):
    """One beat of a frame: a header of 64 bytes first, then the payload, zeros to a whole beat.

    `last` marks the frame's end. `bad` counts with it: the MAC found the frame damaged.
    """

    def __init__(self, lanes: int) -> None:
        super().__init__({"data": 32 * lanes, "last": 1, "bad": 1})


HEADER = data.StructLayout({field.name: 8 * field.width for field in FIELDS})
"""The header, little endian: bit 0 is the first byte's lowest."""

for _field in FIELDS:
    assert HEADER[_field.name].offset == 8 * _field.offset

ALL_REDUCE_SUM = Collective.ALL_REDUCE << 4 | ReduceOp.SUM
"""The `op` of frames that circuits reduce."""


class Frame(data.StructLayout):
    """What is kept of a frame's header: what all ranks must agree on."""

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
    """The Element of a dtype in ELEMENTS."""
    code: Value = (dtype == _code(Element.INT32)) * Element.INT32
    for element in (Element.BFLOAT16, Element.FLOAT16):
        code = code | (dtype == _code(element)) * element
    return code[:2]


def _code(element: Element) -> int:
    return next(int(dtype) for dtype, each in ELEMENTS.items() if each is element)
