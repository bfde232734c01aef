"""Detection of a lasting change of the step time, after which gradient groups are tried again.

    step   0                64        72            128       136
           | first window   | average |             | average |

The average of each later window is compared with that of the first window.
"""

import statistics
from collections.abc import Callable

from slackline.overlap.exchange import Average
from slackline.units import show_time

__all__ = ["Drift"]

WINDOW = 64
"""The steps of one window; the median of their times is the window's figure."""
LATER = 8
"""The steps from a window's end to its use; the ranks' averages are known long before."""
CHANGED = 1.25
"""The factor by which a step must be longer, or shorter, than at first to count as changed."""
IN_A_ROW = 2
"""The windows in a row that must show the change: other load on the machine may cause one."""


class Drift:
    """A detector of lasting changes of the step time; all ranks reach the same result."""

    def __init__(self, average: Average, *, rest: int) -> None:
        """Create a detector that uses `average` to average step times over the ranks.

        No change is reported in the first `rest` steps, so that trials stay rare.
        """
        self._average = average
        self._rest = rest
        self._steps = 0
        self._window: list[int] = []
        self._averages: Callable[[], list[float]] | None = None
        self._first_ns = 0.0
        self._changes: list[float] = []

    @property
    def told(self) -> str:
        """The change of the step time, as a clause for a log line."""
        now = self._changes[-1] * self._first_ns
        return f"a step takes {show_time(now)} instead of {show_time(self._first_ns)}"

    def step(self, elapsed_ns: int) -> bool:
        """Record the time of a training step; return whether step times have changed for good."""
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
