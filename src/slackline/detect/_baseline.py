"""The baseline of a measured quantity: median and noise band of its last calm readings."""

from collections import deque
from collections.abc import Iterable

__all__ = ["Baseline"]

_SCALE = 1.4826
"""The factor from the median deviation of normal noise to its standard deviation."""

_SHARE = 8
"""The part of the remembered readings, one in so many, that must be new for a new median."""

_FORGET = 0.98
"""The slowest decay of the noise band per new estimate, because noise comes in long bursts."""


class Baseline:
    """The median and noise of the last `memory` readings, recomputed every `every` readings.

    With many readings they are recomputed when an eighth of them is new.
    """

    def __init__(self, *, least: int, memory: int, every: int, noise_factor: float) -> None:
        self.middle = 0.0
        self.scatter = 0.0
        """The noise band: a reading that is further than this from the median is no noise."""
        self._readings: deque[float] = deque(maxlen=memory)
        self._least = least
        self._every = every
        self._noise_factor = noise_factor
        self._due = least

    @property
    def readings(self) -> Iterable[float]:
        """The remembered readings, oldest first."""
        return self._readings

    @property
    def known(self) -> bool:
        """Whether at least `least` readings were added, so that the baseline is valid."""
        return len(self._readings) >= self._least

    def add(self, reading: float) -> None:
        """Add a reading taken while no change of the quantity was detected; larger is worse."""
        self._readings.append(reading)
        self._due -= 1
        if self._due <= 0:
            # Many readings change little by a few more, and their median takes longer to compute.
            self._due = max(self._every, len(self._readings) // _SHARE)
            self._compute()

    def _compute(self) -> None:
        ordered = sorted(self._readings)
        middle = ordered[len(ordered) // 2]
        deviations = sorted(abs(x - middle) for x in ordered)
        # Few readings have not shown the tail of the distribution yet, so the band is wider.
        unsure = 1 + self._least / len(ordered)
        noise = self._noise_factor * _SCALE * deviations[len(deviations) // 2]
        self.middle = middle
        self.scatter = max(unsure * noise, _FORGET * self.scatter)
