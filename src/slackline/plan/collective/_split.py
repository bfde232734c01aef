"""The rules that cut a buffer into chunks, and a chunk into segments.

A buffer is cut at multiples of a cache line, evenly or by weights. By its segments a rank can
forward the first part of a chunk early. Sender and receiver cut by the same rule, and so does the
native engine.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from slackline._lazy import record
from slackline.errors import UsageError

__all__ = ["LINE_BYTES", "MOST_WEIGHT", "Cutting", "check_weights", "cutting", "split"]


LINE_BYTES = 64
"""The unit of cutting: 64 bytes, a cache line and also the word of a 512-bit stream."""
MOST_WEIGHT = (1 << 32) - 1
"""The largest sum of the weights of a buffer's parts."""


def split(
    count: int, parts: int, itemsize: int, weights: Sequence[int] | None = None
) -> tuple[tuple[int, int], ...]:
    """Return the (offset, count) of each part of a buffer, in elements.

    The native engine cuts by the same rule. The buffer has ceil(count * itemsize / 64) lines.
    Without `weights`, part i has lines // parts of these lines, and one more where
    i < lines % parts. With `weights`, part i begins at line
    lines * sum(weights[:i]) // sum(weights). The last line may be short and parts may be empty:

        split(40, 3, 4):  160 bytes = 3 lines of 16 elements -> (0, 16) (16, 16) (32, 8)
        split(20, 3, 4):   80 bytes = 2 lines                -> (0, 16) (16, 4)  (20, 0)
        split(128, 3, 4, (1, 0, 3)):  8 lines                -> (0, 32) (32, 0)  (32, 96)

    Raises UsageError that names a wrong value.
    """
    if count < 0:
        raise UsageError(f"count must be at least 0, not {count}")
    if parts < 1:
        raise UsageError(f"parts must be a positive integer, not {parts}")
    if itemsize < 1 or LINE_BYTES % itemsize:
        raise UsageError(f"itemsize must divide {LINE_BYTES}, not be {itemsize}")
    per_line = LINE_BYTES // itemsize
    lines = -(-count // per_line)
    if weights is None:
        base, longer = divmod(lines, parts)
        starts = [i * base + min(i, longer) for i in range(parts + 1)]
    else:
        check_weights(weights, parts)
        total = sum(weights)
        starts = [lines * before // total for before in accumulate(weights, initial=0)]
    bounds = [min(start * per_line, count) for start in starts]
    return tuple((low, high - low) for low, high in pairwise(bounds))


def check_weights(weights: Sequence[int], parts: int) -> None:
    """Raise UsageError unless each part has a weight, none negative and at least one positive."""
    if len(weights) != parts:
        raise UsageError(f"{parts} parts need {parts} weights, not {len(weights)}")
    if min(weights) < 0:
        raise UsageError(f"every weight must be at least 0, not {min(weights)}")
    if not 0 < sum(weights) <= MOST_WEIGHT:
        raise UsageError(f"the sum of weights must be 1 to {MOST_WEIGHT}, not {sum(weights)}")


_SMALLEST_BYTES = 16 << 10


@record(frozen=True, slots=True, kw_only=True)
class Cutting:
    """The rule by which the chunks of one plan are cut into segments."""

    pieces: int = 8
    """The number of segments that a chunk is cut into, unless they become too small."""
    longest_bytes: int | None = None
    """The longest segment of this plan; None: as long as the rail allows."""

    def elements(self, count: int, itemsize: int, limit_bytes: int, *, forwards: bool) -> int:
        """Return the number of elements in each segment of a chunk of `count` elements.

        The last segment of the chunk may be shorter.

        `itemsize`: bytes of an element on the wire. `limit_bytes`: the longest payload of a frame.
        `forwards`: whether some rank sends part of a chunk after it has received part of that
        chunk; if none does, segments are as long as the limit allows. Otherwise a chunk has about
        `pieces` segments whose size is a power of two, and which are not made smaller than 16 KiB.
        """
        for name, value in (("itemsize", itemsize), ("limit_bytes", limit_bytes)):
            if value < 1:
                raise UsageError(f"{name} must be a positive integer, not {value}")
        nbytes = limit_bytes
        if forwards:
            longest = min(self.longest_bytes or limit_bytes, limit_bytes)
            wanted = count * itemsize // self.pieces + 1
            power = 1 << (wanted - 1).bit_length()
            nbytes = max(min(_SMALLEST_BYTES, longest), min(power, longest))
        return max(1, nbytes // itemsize)


def cutting(helpers: int) -> Cutting:
    """Return the rule for a plan with `helpers` aggregators.

    A plan with an aggregator has smaller segments, since the aggregator delays the result by the
    time of one segment.
    """
    return Cutting(pieces=128, longest_bytes=32 << 10) if helpers else Cutting()
