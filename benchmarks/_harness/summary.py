"""A summary of a sample of durations in three numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The median, 10th and 90th percentile of a sample, in microseconds."""

    median_us: float
    p10_us: float
    p90_us: float
    rounds: int

    @classmethod
    def of_seconds(cls, seconds: Sequence[float]) -> Self:
        """Return the summary of one or more durations in seconds."""
        return cls(
            median_us=round(percentile(seconds, 50) * 1e6, 2),
            p10_us=round(percentile(seconds, 10) * 1e6, 2),
            p90_us=round(percentile(seconds, 90) * 1e6, 2),
            rounds=len(seconds),
        )

    def values(self) -> dict[str, float]:
        """Return the numbers by name, as the values of a report's row."""
        return {
            "median_us": self.median_us,
            "p10_us": self.p10_us,
            "p90_us": self.p90_us,
            "rounds": self.rounds,
        }

    def __str__(self) -> str:
        """Return the median with the spread behind it: "12.1 us (11.8-13.0)"."""
        unit, scale = ("ms", 1e3) if self.median_us >= 10_000 else ("us", 1.0)
        median, low, high = (us / scale for us in (self.median_us, self.p10_us, self.p90_us))
        return f"{median:.1f} {unit} ({low:.1f}-{high:.1f})"


def median_interval(sample: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median of a sample's distribution.

    The bounds are two values of the sample, chosen by the binomial distribution: each value is
    above the median with a chance of one half. Fewer than six values give the whole range.
    """
    if not sample:
        raise ValueError("an interval needs at least one value, not 0")
    ordered, count = sorted(sample), len(sample)
    below, tail = 0, 1
    while 40 * tail <= 2**count:
        below += 1
        tail += math.comb(count, below)
    rank = max(0, below - 1)
    return ordered[rank], ordered[count - 1 - rank]


def percentile(sample: Sequence[float], percent: float) -> float:
    """Return the value below which `percent` of the sample lies, linear between neighbours."""
    if not sample:
        raise ValueError("a percentile needs at least one value, not 0")
    ordered = sorted(sample)
    place = (len(ordered) - 1) * percent / 100
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    return below + (above - below) * (place - math.floor(place))
