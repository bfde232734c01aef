"""The model of slow times of similar lengths, and of similar times between them.

A link is slow or fast. The chance that the present state has ended some time ahead follows from the
lengths of earlier times in the same state, by the survival function of Kaplan and Meier.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.stats import ecdf

from slackline.pipeline.forecast._history import Array, History
from slackline.units import show_time

__all__ = ["Bursts", "fit_bursts"]

_LEAST = 3
"""The least number of known lengths of times in the present state."""
_LIKELY = 0.5
"""The chance of an end from which the forecast is the delay of the other state."""


@dataclass(frozen=True, slots=True, eq=False)
class Bursts:
    """A link that is slow and fast in turn."""

    slow: bool
    """Whether the link is slow at the latest reading."""
    age: float
    """The seconds for which the link has been in its present state."""
    lengths: Array
    """The lengths in seconds of earlier times in the same state."""
    survival: Any
    """The chance that a time in this state lasts longer than a given number of seconds."""
    now_ms: float
    other_ms: float
    """The median delay in the other state."""

    def at(self, seconds: Array) -> Array:
        """Return the delays in ms that are expected some seconds after the latest reading."""
        now = float(self.survival.evaluate(self.age))
        if not now:  # The present time is longer than all earlier ones.
            return np.full(len(seconds), self.now_ms)
        ended = 1 - self.survival.evaluate(self.age + seconds) / now
        return np.where(ended > _LIKELY, self.other_ms, self.now_ms)

    def sentence(self) -> str:
        """Return the forecast in words."""
        state = "slow" if self.slow else "fast"
        least, most = (show_time(1e9 * float(x)) for x in (self.lengths.min(), self.lengths.max()))
        return (
            f"The link is {state} for {least} to {most} each "
            f"time, now for {show_time(1e9 * self.age)}; the delay then changes to "
            f"{show_time(1e6 * self.other_ms)}."
        )


def fit_bursts(history: History) -> Bursts | None:
    """Return the model of a history; None if too few times in the present state have ended.

    The first time of the history began before the history, so its length is not used.
    """
    delays, seconds = history.delays_ms, history.seconds
    slow = delays > (delays.min() + delays.max()) / 2
    turns = np.flatnonzero(slow[1:] != slow[:-1]) + 1
    starts = (seconds[turns - 1] + seconds[turns]) / 2
    now = bool(slow[-1])
    lengths = np.diff(starts)[slow[turns[:-1]] == now]
    if len(lengths) < _LEAST:
        return None
    age = -float(starts[-1])
    return Bursts(
        slow=now,
        age=age,
        lengths=lengths,
        survival=_survival(tuple(lengths)),
        now_ms=float(delays[-1]),
        other_ms=float(np.median(delays[slow != now])),
    )


@lru_cache(maxsize=64)
def _survival(lengths: tuple[float, ...]) -> Any:
    """Return the survival function of lengths; the lengths of a link change only with its state."""
    return ecdf(lengths).sf
