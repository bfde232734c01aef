"""Layouts of a frame in a circuit: its beats, and the header of `slackline.wire`."""

from amaranth.hdl import Cat, Const, Mux, Value
from amaranth.lib import data

from slackline.circuit.options import ELEMENT_BITS, ELEMENTS
from slackline.wire import FIELDS, Collective, ReduceOp

__all__ = ["ALL_REDUCE_SUM", "HEADER", "Beat", "Frame", "element_of", "item_sizes", "whole_items"]


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
    """Return the Element code of a frame's `dtype`, which must be one of ELEMENTS."""
    code: Value = Const(0, ELEMENT_BITS)
    for each, element in ELEMENTS.items():
        code = code | Mux(dtype == int(each), Const(element, ELEMENT_BITS), 0)
    return code[:ELEMENT_BITS]


def item_sizes(dtype: Value) -> dict[int, Value]:
    """Return, for each size of an element in bytes, whether `dtype` is one of ELEMENTS of it."""
    sizes = sorted({each.itemsize for each in ELEMENTS})
    return {
        size: Cat(dtype == int(each) for each in ELEMENTS if each.itemsize == size).any()
        for size in sizes
    }


def whole_items(dtype: Value, size: Value) -> Value:
    """Return whether `size` bytes are whole elements of `dtype`, which is one of ELEMENTS."""
    return Cat(
        right & (~size[: bytes_.bit_length() - 1].any() if bytes_ > 1 else 1)
        for bytes_, right in item_sizes(dtype).items()
    ).any()
