"""The model of congestion that comes back after a fixed time.

The period is the lag with the highest autocorrelation, and the forecast for a time is the median of
the delays at the same place in the latest periods.
"""

from dataclasses import dataclass

import numpy as np
from scipy.signal import correlate, find_peaks

from slackline.pipeline.forecast._history import Array, History
from slackline.units import show_time

__all__ = ["Periodic", "fit_periodic"]

_LEAST_LAG = 4
"""The shortest period, in intervals of the grid."""
_LIKE = 0.4
"""The least autocorrelation of a period."""
_AS_LIKE = 0.9
"""The fraction of the highest autocorrelation that a shorter lag needs to be the period."""
_REACH = 0.1
"""The fraction of a period within which a multiple of the period is looked for."""
_PERIODS = 5
"""The number of the latest periods of which the median is taken."""
_FEW = 2
"""The largest number of known periods for which the latest period is taken as it is."""


@dataclass(frozen=True, slots=True, eq=False)
class Periodic:
    """A periodic delay, fitted to a history."""

    history: History
    interval: float
    """The time between readings in seconds."""
    period: float
    """The period in seconds."""

    def at(self, seconds: Array) -> Array:
        """Return the delays in ms that are expected some seconds after the latest reading."""
        first = np.maximum(np.ceil(seconds / self.period), 1)
        turns = first[:, None] + np.arange(_PERIODS)
        past = seconds[:, None] - turns * self.period
        known = past >= self.history.seconds[0] - self.interval / 2
        values = self.history.nearest(past)
        found = values[:, 0].copy()
        several = known.sum(axis=1) > _FEW
        found[several] = np.nanmedian(np.where(known, values, np.nan)[several], axis=1)
        return found

    def sentence(self) -> str:
        """Return the forecast in words, with times counted from the latest reading."""
        places = np.arange(0, self.period, self.interval)
        values = self.at(places)
        slow = values > (values.min() + values.max()) / 2
        length = self.period * float(slow.mean())
        turn = float(places[np.argmax(slow != slow[0])])
        then = "this time ends" if slow[0] else "the next time is"
        return (
            f"Every {show_time(1e9 * self.period)} the link slows by "
            f"{show_time(1e6 * float(np.ptp(values)))} for "
            f"{show_time(1e9 * length)}; {then} in {show_time(1e9 * turn)}."
        )


def fit_periodic(history: History) -> Periodic | None:
    """Return the periodic model of a history; None if no period has come twice."""
    interval, values = history.regular()
    count = len(values)
    longest = 2 * count // 3
    spread = values - values.mean()
    power = float(spread @ spread) / count
    if longest <= _LEAST_LAG or not power:
        return None
    products = correlate(spread, spread, method="fft")[count - 1 :]
    likeness = products / (count - np.arange(count)) / power
    peaks, _ = find_peaks(likeness[: longest + 1], height=_LIKE)
    peaks = peaks[peaks >= _LEAST_LAG]
    if not len(peaks):
        return None
    lag = float(peaks[likeness[peaks] >= _AS_LIKE * likeness[peaks].max()][0])
    turns = 2
    while (about := round(turns * lag)) <= longest:
        # A multiple of the period gives the period to a fraction of the grid's interval.
        reach = max(1, round(_REACH * lag))
        window = likeness[about - reach : min(about + reach, longest) + 1]
        lag = (about - reach + int(np.argmax(window))) / turns
        turns += 1
    return Periodic(history, interval, lag * interval)
