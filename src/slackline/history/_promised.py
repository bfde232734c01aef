"""A predicted step time, with the steps that it was about."""

from collections import deque
from statistics import median

from slackline.records import Promise

__all__ = ["Promised"]

_KEPT_STEPS = 2000


class Promised:
    """A predicted step time, with the measured durations of the steps that followed."""

    def __init__(self, promise: Promise) -> None:
        self.promise = promise
        """The prediction."""
        self.count = 0
        """The number of steps that began after the prediction and before the next one."""
        self._walls_ns: deque[int] = deque(maxlen=_KEPT_STEPS)

    def add(self, wall_ns: int) -> None:
        """Add the duration of a step that the prediction is about."""
        self.count += 1
        self._walls_ns.append(wall_ns)

    @property
    def measured_ns(self) -> float | None:
        """The median duration of the latest 2000 of the steps; None before the first step."""
        return median(self._walls_ns) if self._walls_ns else None
