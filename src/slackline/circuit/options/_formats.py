"""Number formats of the lanes, shared by the gateware and its twins (Python models)."""

from enum import IntEnum

from slackline.wire import DType

__all__ = ["CANONICAL_NAN", "ELEMENTS", "Element"]

CANONICAL_NAN = 0x7FC00000
"""The only NaN that a lane produces: quiet, positive, with an empty payload."""


class Element(IntEnum):
    """An element type that lanes add; circuits encode it in two bits."""

    FLOAT32 = 0
    INT32 = 1
    BFLOAT16 = 2
    FLOAT16 = 3

    @property
    def half(self) -> bool:
        """Whether the type has 16 bits: a word then holds two elements, which lanes add in fp32."""
        return self >= Element.BFLOAT16


ELEMENTS = {
    DType.FLOAT32: Element.FLOAT32,
    DType.INT32: Element.INT32,
    DType.BFLOAT16: Element.BFLOAT16,
    DType.FLOAT16: Element.FLOAT16,
}
"""The element types that circuits add, by the wire's dtype."""
