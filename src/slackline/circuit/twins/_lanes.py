"""Twins of the lanes: NumPy models whose results are bit-identical to those of the circuits.

NumPy computes under the floating-point modes of the calling thread, which a program may have
changed; circuits have no modes. The twins therefore compute under the default modes.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from slackline._native import DefaultFloatModes
from slackline.circuit.options import CANONICAL_NAN, Element, Way
from slackline.errors import UsageError

__all__ = ["Words", "add", "lanes", "narrow", "reduce_in_rank_order", "widen"]

Words = npt.NDArray[np.uint32]
"""An array of 32-bit words, each the bits of one fp32 or integer element."""

_NAN_HALVES = {Element.BFLOAT16: 0x7FC0, Element.FLOAT16: 0x7E00}


def add(a: Words, b: Words, way: Way = Way.FLOAT) -> Words:
    """Return a + b as an Adder gives it: fp32 with one canonical NaN, or integers that wrap.

    IEEE 754 leaves a NaN's sign and payload open, and processors differ. With one canonical NaN,
    the result's bits depend on the operands alone.
    """
    if way is Way.WRAP:
        return np.add(a, b, dtype=np.uint32)
    with np.errstate(all="ignore"), DefaultFloatModes():
        total = a.view(np.float32) + b.view(np.float32)
    bits = total.view(np.uint32)
    bits[np.isnan(total)] = CANONICAL_NAN
    return bits


def widen(halves: npt.NDArray[np.uint16], element: Element) -> Words:
    """Return the exact fp32 value of each 16-bit float, bit-identical to the output of Widen."""
    bits = halves.astype(np.uint32)
    if element is Element.BFLOAT16:
        return bits << np.uint32(16)
    if element is not Element.FLOAT16:
        raise UsageError(f"a half type is BFLOAT16 or FLOAT16, not {element.name}")
    with DefaultFloatModes():
        wide = halves.view(np.float16).astype(np.float32).view(np.uint32)
    # Processors make a signalling NaN quiet, but the circuit leaves its bits alone.
    nan = (bits & 0x7FFF) > 0x7C00
    return np.where(nan, (bits & 0x8000) << 16 | 0x7F800000 | (bits & 0x3FF) << 13, wide)


def narrow(wide: Words, element: Element) -> npt.NDArray[np.uint16]:
    """Round fp32 to the nearest 16-bit float as Narrow does: ties to even, one canonical NaN."""
    if element not in _NAN_HALVES:
        raise UsageError(f"a half type is BFLOAT16 or FLOAT16, not {element.name}")
    if element is Element.BFLOAT16:
        rounded = ((wide.astype(np.uint64) + 0x7FFF + (wide >> 16 & 1)) >> 16).astype(np.uint16)
    else:
        with np.errstate(all="ignore"), DefaultFloatModes():
            rounded = wide.view(np.float32).astype(np.float16).view(np.uint16)
    nan = (wide & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan, np.uint16(_NAN_HALVES[element]), rounded)


def lanes(a: Words, b: Words, element: Element) -> Words:
    """Return a + b as Lanes gives it: one sum for each element, in fp32 for 16-bit types."""
    if element.half:
        return add(widen(a.view(np.uint16), element), widen(b.view(np.uint16), element))
    return add(a, b, element.way)


def reduce_in_rank_order(payloads: Sequence[bytes], element: Element) -> bytes:
    """Return ((x0 + x1) + x2) + ... over payloads; 16-bit types are rounded once, at the end."""
    if element.half:
        halves = [np.frombuffer(payload, np.uint16) for payload in payloads]
        columns = [widen(each, element) for each in halves]
    else:
        columns = [np.frombuffer(payload, np.uint32) for payload in payloads]
    total = columns[0]
    for column in columns[1:]:
        total = add(total, column, element.way)
    result = narrow(total, element) if element.half else total
    return result.tobytes()
