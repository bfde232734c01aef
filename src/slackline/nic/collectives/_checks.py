"""Checks of an operation's arguments before they reach the engine."""

from collections.abc import Sequence

from slackline.errors import UsageError
from slackline.nic._tags import in_callback
from slackline.wire import DType, ReduceOp

__all__ = [
    "check_collective_tag",
    "check_peer",
    "check_reduction",
    "check_root",
    "check_tag",
    "sum_counts",
]

_MAX_TAG = 1 << 24
_FLOATS = (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16)
_BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)


def check_reduction(rank: int, count: int, dtype: DType, op: ReduceOp) -> int:
    """Return the size of `count` elements in bytes; raise UsageError for an undefined reduction."""
    if op is ReduceOp.NONE:
        raise UsageError("a reduction needs an operation, not NONE", rank=rank)
    if dtype in _FLOATS and op in _BITWISE:
        raise UsageError(f"{op.name} is not defined for {dtype.name.lower()}", rank=rank)
    if dtype is DType.BOOL and op is ReduceOp.AVG:
        raise UsageError("AVG is not defined for bool", rank=rank)
    if count < 0:
        raise UsageError(f"count must be at least 0, not {count}", rank=rank)
    return count * dtype.itemsize


def sum_counts(rank: int, size: int, name: str, counts: Sequence[int]) -> int:
    """Return the sum of `counts`; raise UsageError unless each rank has a count of at least 0."""
    if len(counts) != size:
        raise UsageError(
            f"{name} must have an entry for each of {size} ranks, not {len(counts)}", rank=rank
        )
    if min(counts) < 0:
        raise UsageError(f"{name} must be at least 0, not {min(counts)}", rank=rank)
    return sum(counts)


def check_tag(rank: int, tag: int) -> int:
    """Return `tag`; raise UsageError if it does not fit into a frame header."""
    if not 0 <= tag < _MAX_TAG:
        raise UsageError(f"tag must be 0 to {_MAX_TAG - 1}, not {tag}", rank=rank)
    return tag


def check_collective_tag(rank: int, tag: int) -> int:
    """Return the tag, or the identity in a callback, of a collective; raise UsageError if wrong."""
    return tag if in_callback(tag) else check_tag(rank, tag)


def check_root(rank: int, size: int, root: int | None) -> None:
    """Raise UsageError unless `root` is a rank of the group or None (no root)."""
    if root is not None and not 0 <= root < size:
        raise UsageError(f"root must be a rank below {size}, not {root}", rank=rank)


def check_peer(rank: int, size: int, peer: int | None) -> None:
    """Raise UsageError unless `peer` is another rank of the group or None (any rank)."""
    if peer is not None and (not 0 <= peer < size or peer == rank):
        raise UsageError(f"peer must be another rank below {size}, not {peer}", rank=rank)
