"""The history of a link's delays, at the times of the measurements and on a regular grid."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter

__all__ = ["Array", "History", "Reading"]

Array = NDArray[np.float64]

_NS_PER_MS = 1e6
_NS_PER_S = 1e9
_SMOOTHED = 3
"""The number of consecutive readings of which the median is taken, so that one outlier is lost."""


class Reading(NamedTuple):
    """A measured delay of a link."""

    time_ns: int
    """The time of the measurement, by any clock that never goes back."""
    delay_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """The past delays of one link, as arrays of equal length."""

    seconds: Array
    """The time of each reading, counted from the latest reading: increasing, and 0 at the end."""
    delays_ms: Array
    """The delays with single outliers replaced: the median of each three consecutive readings."""

    @classmethod
    def of(cls, readings: Sequence[Reading]) -> Self:
        """Build the history of readings in order of time, of which there must be at least one."""
        times = np.array([each.time_ns for each in readings], dtype=np.int64)
        delays = np.array([each.delay_ns for each in readings], dtype=np.float64)
        smooth = median_filter(delays, size=_SMOOTHED, mode="nearest")
        return cls((times - times[-1]) / _NS_PER_S, smooth / _NS_PER_MS)

    @property
    def swing_ms(self) -> float:
        """The difference between the longest and the shortest delay."""
        return float(np.ptp(self.delays_ms))

    def regular(self) -> tuple[float, Array]:
        """Return an interval in seconds, and the delays at every multiple of it before the latest.

        The interval is the median time between readings. The last element is the latest delay. A
        history with long pauses is cut to twice as many elements as there are readings.
        """
        interval = float(np.median(np.diff(self.seconds)))
        count = min(int(-self.seconds[0] / interval) + 1, 2 * len(self.seconds))
        return interval, self.nearest(np.arange(1 - count, 1, dtype=np.float64) * interval)

    def nearest(self, seconds: Array) -> Array:
        """Return the delays in ms of the readings nearest to the given times."""
        middles = (self.seconds[1:] + self.seconds[:-1]) / 2
        return self.delays_ms[np.searchsorted(middles, seconds)]
