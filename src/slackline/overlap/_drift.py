"""Whether the time of a step has changed for good: then other groups may be better than those that
a trial has found.

    step   0                64        72            128       136
           | first window   | average |             | average |
                                    its average is what later windows are compared with
"""

import statistics
from collections.abc import Callable

from slackline.overlap._rank_averages import Average

__all__ = ["Drift"]

WINDOW = 64
"""Steps whose median is one figure."""
LATER = 8
"""Steps from the end of a window to its effect: the ranks' averages are known long before."""
CHANGED = 1.25
"""A step that is so many times longer than it was, or shorter, has changed."""
IN_A_ROW = 2
"""Windows that have changed alike: one alone may be a neighbour's work on a shared machine."""


class Drift:
    """One rank's part. All ranks come to the same answer at the same step."""

    def __init__(self, average: Average, *, rest: int) -> None:
        """`rest`: steps before which nothing has changed for good, so that trials stay rare."""
        self._average = average
        self._rest = rest
        self._steps = 0
        self._window: list[int] = []
        self._averages: Callable[[], list[float]] | None = None
        self._first_ns = 0.0
        self._changes: list[float] = []

    @property
    def told(self) -> str:
        """How the step has changed, as a clause."""
        now = self._changes[-1] * self._first_ns
        return f"a step takes {now / 1e6:.1f} ms instead of {self._first_ns / 1e6:.1f}"

    def step(self, elapsed_ns: int) -> bool:
        """Take the time of the step that has ended; return whether it has changed for good."""
        self._steps += 1
        self._window.append(elapsed_ns)
        if self._steps % WINDOW == 0:
            self._averages = self._average([statistics.median(self._window)])
            self._window.clear()
        if self._averages is None or self._steps % WINDOW != LATER:
            return False
        (average_ns,) = self._averages()
        self._averages = None
        if not self._first_ns:
            self._first_ns = average_ns
            return False
        self._changes = [*self._changes, average_ns / self._first_ns][-IN_A_ROW:]
        longer = all(change >= CHANGED for change in self._changes)
        shorter = all(change <= 1 / CHANGED for change in self._changes)
        return (longer or shorter) and len(self._changes) == IN_A_ROW and self._steps > self._rest
