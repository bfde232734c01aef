"""A limit on the time that detailed records of steps take."""

__all__ = ["DetailBudget"]

_SHARE = 1 / 400
"""The share of the time that detailed records may take: 0.25 %."""

_MOST_NS = 100_000_000
"""The largest time that may be saved up for later steps."""

_COST_OVER_SUMMARY = 1.25
"""The whole cost of a step's details over the time in which its summary is computed.

Details are collected during the step as well, and are written by another thread. With 4 groups and
with 120, the whole cost was 1.2 times the time of the summary.
"""


class DetailBudget:
    """A budget of time, which decides which steps are recorded in detail.

    The budget grows with the time and falls by the cost of each detailed record. Steps of a few
    groups of gradients, and the first steps of a run, all fit; of short steps with hundreds of
    groups only some do. Times are nanoseconds of a monotonic clock.
    """

    def __init__(self, now_ns: int) -> None:
        self._left_ns = float(_MOST_NS)
        self._now_ns = now_ns

    def allows(self, now_ns: int) -> bool:
        """Return whether the step that begins at `now_ns` is to be recorded in detail."""
        self._left_ns = min(_MOST_NS, self._left_ns + (now_ns - self._now_ns) * _SHARE)
        self._now_ns = now_ns
        return self._left_ns > 0

    def spend(self, summary_ns: int) -> None:
        """Subtract the cost of a record whose summary was computed in `summary_ns`."""
        self._left_ns -= summary_ns * _COST_OVER_SUMMARY
