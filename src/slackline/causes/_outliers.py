"""Values that stand out of those of many links."""

import math
from collections.abc import Collection
from itertools import pairwise

__all__ = ["above_the_gap", "best_quarter"]

_GAP = 0.2
"""The widest gap is a ratio of 1 and so much for the square root of the number of values at least,
since more of them scatter more: 1.7 for the 12 directions of four hosts, 2.5 for the 56 of eight.
"""


def above_the_gap(values: Collection[float], least: float) -> float:
    """Return the least of the values that stand out: those above the widest gap in the upper half.

    The gap is a ratio, and the values above it are at least `least`; infinity if there is none.
    """
    ordered = sorted(values, reverse=True)
    enough = 1 + _GAP * math.sqrt(len(ordered))
    gaps = [
        (above / max(below, least / enough), above)
        for above, below in pairwise(ordered[: len(ordered) // 2 + 1])
        if above >= least
    ]
    ratio, limit = max(gaps, default=(0.0, 0.0))
    return limit if ratio >= enough else math.inf


def best_quarter(values: Collection[float]) -> float:
    """Return the value below which a quarter of the values lie."""
    return sorted(values)[(len(values) - 1) // 4]
