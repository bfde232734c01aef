"""The comparison of all ranks' kernels, the functions that reduce elements, when a group opens.

Each rank reduces fixed inputs with its own kernels and publishes a checksum of the results for
each element type and reduction. Kernels that were built by another compiler, or that run on a
processor of another make, could give other bits; the ranks of a group would then disagree in
silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import slackline._native as _native
from slackline.errors import UsageError
from slackline.wire import DType, ReduceOp

__all__ = ["check_kernels", "kernel_checksums"]

_DIGITS = 4
_MOST_NAMED = 3


@cache
def kernel_checksums() -> str:
    """Return the checksums of this process's kernels, four hexadecimal digits for each pair."""
    return "".join(f"{checksum:0{_DIGITS}x}" for _, _, checksum in _native.kernel_fingerprints())


def check_kernels(checksums: Sequence[str], rank: int) -> None:
    """Raise UsageError on every rank if the kernels of some ranks would give other bits.

    `checksums` has the text of each rank; an empty text is not compared. The error names the ranks
    that differ from the first rank, and the element types and reductions that differ.
    """
    known = [(peer, text) for peer, text in enumerate(checksums) if text]
    if not known:
        return
    first, expected = known[0]
    others = [(peer, text) for peer, text in known if text != expected]
    if not others:
        return
    differing = sorted({pair for _, text in others for pair in _differing(expected, text)})
    names = [f"{ReduceOp(op).name} of {DType(dtype).name.lower()}" for dtype, op in differing]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    what = ", ".join(names[:_MOST_NAMED]) + more if names else "some reductions"
    ranks = ", ".join(str(peer) for peer, _ in others)
    plural = "ranks" if len(others) > 1 else "rank"
    raise UsageError(
        f"{plural} {ranks} would give other bits than rank {first}: {what}: install the same build "
        "of slackline on every host",
        rank=rank,
        peer=others[0][0],
    )


def _differing(one: str, other: str) -> list[tuple[int, int]]:
    """Return the pairs (element type, reduction) whose checksums differ in two texts."""
    pairs = [(dtype, op) for dtype, op, _ in _native.kernel_fingerprints()]
    if len(one) != len(other) or len(one) != _DIGITS * len(pairs):
        return []
    places = (slice(at, at + _DIGITS) for at in range(0, len(one), _DIGITS))
    return [pair for pair, place in zip(pairs, places, strict=True) if one[place] != other[place]]
