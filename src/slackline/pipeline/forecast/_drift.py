"""The model of a delay that rises or falls steadily: the line with Theil and Sen's slope.

The slope is the median of the slopes between all pairs of readings, so that outliers do not turn
the line.
"""

from dataclasses import dataclass

import numpy as np
from scipy.stats import theilslopes

from slackline.pipeline.forecast._history import Array, History
from slackline.units import show_time

__all__ = ["Drift", "fit_drift"]

_LATEST = 32
"""The number of the latest readings to which the line is fitted."""
_LEAST = 12
"""The least number of readings for a line."""


@dataclass(frozen=True, slots=True)
class Drift:
    """A steady change of a delay."""

    slope: float
    """The change in ms a second."""
    latest_ms: float
    """The delay of the line at the latest reading."""

    def at(self, seconds: Array) -> Array:
        """Return the delays in ms that are expected some seconds after the latest reading."""
        return np.maximum(self.latest_ms + self.slope * seconds, 0)

    def sentence(self) -> str:
        """Return the forecast in words."""
        way = "rises" if self.slope > 0 else "falls"
        return (
            f"The delay of the link is {show_time(1e6 * self.latest_ms)} and {way} by "
            f"{show_time(60e6 * abs(self.slope))} a minute."
        )


def fit_drift(history: History) -> Drift | None:
    """Return the line through the latest delays; None if the sign of its slope is not certain.

    The sign is certain if the 95 % confidence interval of the slope does not contain 0.
    """
    if len(history.seconds) < _LEAST:
        return None
    delays, seconds = history.delays_ms[-_LATEST:], history.seconds[-_LATEST:]
    slope, latest, low, high = theilslopes(delays, seconds, alpha=0.95)
    if low <= 0 <= high:
        return None
    return Drift(float(slope), float(latest))
