"""The number formats of the lanes, as both the gateware and its twins know them."""

from enum import IntEnum

from slackline.wire import DType

__all__ = ["CANONICAL_NAN", "ELEMENTS", "Element"]

CANONICAL_NAN = 0x7FC00000
"""The one NaN that a lane gives: quiet, positive, no payload."""


class Element(IntEnum):
    """What the words of a beat are; the code is two bits wide in the circuits."""

    FLOAT32 = 0
    INT32 = 1
    BFLOAT16 = 2
    FLOAT16 = 3

    @property
    def half(self) -> bool:
        """Two elements in a word; they are added in fp32."""
        return self >= Element.BFLOAT16


ELEMENTS = {
    DType.FLOAT32: Element.FLOAT32,
    DType.INT32: Element.INT32,
    DType.BFLOAT16: Element.BFLOAT16,
    DType.FLOAT16: Element.FLOAT16,
}
"""The frame's code of each element type that circuits add."""
