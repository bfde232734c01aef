"""The cutting of chunks into segments, so that a rank can forward a chunk's first part early.

Sender and receiver cut by the same rule, and so does the native engine.
"""

from dataclasses import dataclass

from slackline.errors import UsageError

__all__ = ["Cutting", "cutting"]

_SMALLEST_BYTES = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
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
