"""Number formats of the lanes, shared by the gateware and its twins (Python models)."""

from enum import IntEnum

from slackline.wire import DType

__all__ = ["CANONICAL_NAN", "ELEMENTS", "ELEMENT_BITS", "WAY_BITS", "Element", "Way"]

CANONICAL_NAN = 0x7FC00000
"""The only NaN that a lane produces: quiet, positive, with an empty payload."""


class Way(IntEnum):
    """How an adder adds two words; circuits encode it in WAY_BITS bits."""

    FLOAT = 0
    """As fp32, into which 16-bit types are widened."""
    WRAP = 1
    """As 32-bit integers that wrap."""


WAY_BITS = max(Way).bit_length()
"""Bits of a Way code in a circuit."""


class Element(IntEnum):
    """An element type that lanes add; circuits encode it in ELEMENT_BITS bits."""

    FLOAT32 = 0
    INT32 = 1
    BFLOAT16 = 2
    FLOAT16 = 3

    @property
    def bytes(self) -> int:
        """The size of an element in bytes."""
        return _ROWS[self][0]

    @property
    def way(self) -> Way:
        """How adders add words of the type."""
        return _ROWS[self][1]

    @property
    def half(self) -> bool:
        """Whether the type has 16 bits: a word then holds two elements, which lanes add in fp32."""
        return self.bytes == 2


_ROWS = {
    Element.FLOAT32: (4, Way.FLOAT),
    Element.INT32: (4, Way.WRAP),
    Element.BFLOAT16: (2, Way.FLOAT),
    Element.FLOAT16: (2, Way.FLOAT),
}
"""The size of each element type in bytes, 4 or 2, and how adders add it."""


ELEMENT_BITS = max(Element).bit_length()
"""Bits of an Element code in a circuit."""

ELEMENTS = {
    DType.FLOAT32: Element.FLOAT32,
    DType.INT32: Element.INT32,
    DType.BFLOAT16: Element.BFLOAT16,
    DType.FLOAT16: Element.FLOAT16,
}
"""The element types that circuits add, by the wire's dtype."""

for _dtype, _element in ELEMENTS.items():
    assert _dtype.itemsize == _element.bytes, f"{_dtype.name} is no {_element.name}"
