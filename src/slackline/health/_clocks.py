"""Two hosts' clocks against each other: offset and drift, followed as a line.

The offset is known only up to half of the asymmetry that the path has always had: a direction that
was slower from the start looks like an offset. Later changes can be told apart, because clocks
drift (a few to some hundred parts in a million) where delays jump.
"""

__all__ = ["Clocks"]

_LEVEL_GAIN = 0.1
_SLOPE_GAIN = 0.005
_STEEPEST = 500e-6
"""What the kernel allows itself when it corrects a clock."""


class Clocks:
    """The peer's clock minus ours, relative to the first comparison.

    The first comparisons are fitted by least squares; then the line's memory has a fixed length.
    """

    def __init__(self) -> None:
        self.drift = 0.0
        """How much faster the peer's clock runs."""
        self._level = 0.0
        self._at_ns = 0
        self._comparisons = 0

    def offset(self, at_ns: int) -> float:
        """Nanoseconds by which the peer's clock is ahead of what it was, at our time."""
        return self._level + self.drift * (at_ns - self._at_ns)

    def correct(self, at_ns: int, error: float) -> None:
        """The offset at that time was `error` more than `offset` says."""
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
        """The clock was set, or not compared for long: takes the error whole, keeps the drift."""
        self._level = self.offset(at_ns) + error
        self._at_ns = at_ns
        self._comparisons = max(1, min(self._comparisons, 3))
