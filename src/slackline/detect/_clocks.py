"""Offset and drift between two hosts' clocks, tracked as a line over time.

The offset is known only up to half of the path's constant asymmetry: a direction that was slower
from the start looks like an offset. Later changes can be told apart, because clocks drift slowly
(a few to some hundred parts in a million) while delays jump.
"""

__all__ = ["Clocks"]

_LEVEL_GAIN = 0.1
_SLOPE_GAIN = 0.005
_STEEPEST = 500e-6
"""The largest rate at which the kernel corrects a clock."""


class Clocks:
    """The peer's clock minus the local clock, relative to the first comparison.

    The first comparisons are fitted by least squares. Later comparisons have a fixed weight, so
    that old comparisons are forgotten.
    """

    def __init__(self) -> None:
        self.drift = 0.0
        """The relative rate by which the peer's clock runs faster than the local one."""
        self._level = 0.0
        self._at_ns = 0
        self._comparisons = 0

    def offset(self, at_ns: int) -> float:
        """Return the nanoseconds that the peer's clock has gained by the local time `at_ns`."""
        return self._level + self.drift * (at_ns - self._at_ns)

    def correct(self, at_ns: int, error: float) -> None:
        """Correct the clock offset, which at `at_ns` exceeds `offset(at_ns)` by `error`."""
        n = self._comparisons
        level_gain = max(_LEVEL_GAIN, 2 * (2 * n + 1) / ((n + 1) * (n + 2)))
        slope_gain = max(_SLOPE_GAIN, 6 / ((n + 1) * (n + 2)))
        self._level = self.offset(at_ns) + min(1.0, level_gain) * error
        if n:
            steeper = self.drift + slope_gain * error / max(at_ns - self._at_ns, 1)
            self.drift = min(_STEEPEST, max(-_STEEPEST, steeper))
        self._at_ns = at_ns
        self._comparisons = n + 1

    def step(self, at_ns: int, error: float) -> None:
        """Add all of `error` to the clock offset and keep the drift, after a clock was set."""
        self._level = self.offset(at_ns) + error
        self._at_ns = at_ns
        self._comparisons = max(1, min(self._comparisons, 3))
