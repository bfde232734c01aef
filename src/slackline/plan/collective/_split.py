"""The rule that cuts a buffer into chunks: at multiples of a cache line, as evenly as possible."""

from itertools import pairwise

from slackline.errors import UsageError

__all__ = ["LINE_BYTES", "split"]

LINE_BYTES = 64
"""The unit of cutting: 64 bytes, a cache line and also the word of a 512-bit stream."""


def split(count: int, parts: int, itemsize: int) -> tuple[tuple[int, int], ...]:
    """Return the (offset, count) of each part of a buffer, in elements.

    The native engine cuts by the same rule. The buffer has ceil(count * itemsize / 64) lines. Part
    i has lines // parts of these lines, and one more where i < lines % parts. The last line may be
    short and trailing parts may be empty:

        split(40, 3, 4):  160 bytes = 3 lines of 16 elements -> (0, 16) (16, 16) (32, 8)
        split(20, 3, 4):   80 bytes = 2 lines                -> (0, 16) (16, 4)  (20, 0)
    """
    if count < 0:
        raise UsageError(f"count must not be negative, not {count}")
    if parts < 1:
        raise UsageError(f"parts must be a positive integer, not {parts}")
    if itemsize < 1 or LINE_BYTES % itemsize:
        raise UsageError(f"itemsize must divide {LINE_BYTES}, not be {itemsize}")
    per_line = LINE_BYTES // itemsize
    base, longer = divmod(-(-count // per_line), parts)
    bounds = [min((i * base + min(i, longer)) * per_line, count) for i in range(parts + 1)]
    return tuple((low, high - low) for low, high in pairwise(bounds))
