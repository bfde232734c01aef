"""What is usual: the middle and the scatter of the last readings that were calm."""

from collections import deque
from collections.abc import Iterable

__all__ = ["Usual"]

_SCALE = 1.4826
"""Makes the median deviation of normal noise its standard deviation."""

_FORGET = 0.98
"""Of the scatter that was known, for each new estimate of it: bursts come in seasons."""


class Usual:
    """Middle and scatter of the last `memory` readings, computed again every `every` readings."""

    def __init__(self, *, least: int, memory: int, every: int, noise_factor: float) -> None:
        self.middle = 0.0
        self.scatter = 0.0
        """How far from the middle a reading must be to be no noise."""
        self._readings: deque[float] = deque(maxlen=memory)
        self._least = least
        self._every = every
        self._noise_factor = noise_factor
        self._due = least

    @property
    def readings(self) -> Iterable[float]:
        """What is remembered, oldest first."""
        return self._readings

    @property
    def known(self) -> bool:
        """Whether there were enough readings."""
        return len(self._readings) >= self._least

    def add(self, reading: float) -> None:
        """Takes a calm reading; larger is worse."""
        self._readings.append(reading)
        self._due -= 1
        if self._due <= 0:
            self._due = self._every
            self._compute()

    def _compute(self) -> None:
        ordered = sorted(self._readings)
        middle = ordered[len(ordered) // 2]
        deviations = sorted(abs(x - middle) for x in ordered)
        # Few readings have not seen much of the tail yet.
        unsure = 1 + self._least / len(ordered)
        noise = self._noise_factor * _SCALE * deviations[len(deviations) // 2]
        self.middle = middle
        self.scatter = max(unsure * noise, _FORGET * self.scatter)
