"""The event queue of the simulator: events ordered by time, then by the order of their creation."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Protocol

from slackline.errors import UsageError

__all__ = ["Clock", "EventQueue"]


class Clock(Protocol):
    """The time of a simulation, and the events that are still to come."""

    @property
    def now_ps(self) -> int:
        """The time of the event that runs, in picoseconds."""

    def at(self, time_ps: int, event: Callable[..., None], *arguments: Any) -> None:
        """Schedule `event(*arguments)`; raise UsageError where the time has passed."""


class EventQueue:
    """A clock of integer picoseconds that jumps from one event to the next.

    Events of equal time run in the order of the calls of `at`, so the same calls give the same
    trace. Decisions belong in `settle`, which runs after all events of one time.
    """

    def __init__(self) -> None:
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._made = 0
        self._now_ps = 0
        self.executed = 0
        """The number of events that have run."""

    @property
    def now_ps(self) -> int:
        """The time of the event that runs, in picoseconds."""
        return self._now_ps

    def at(self, time_ps: int, event: Callable[..., None], *arguments: Any) -> None:
        """Schedule `event(*arguments)` for a time; raise UsageError where the time has passed."""
        if time_ps < self._now_ps:
            raise UsageError(f"an event must be at {self._now_ps} ps or later, not {time_ps} ps")
        heappush(self._events, (time_ps, self._made, event, arguments))
        self._made += 1

    def run(
        self,
        settle: Callable[[], None] | None = None,
        finished: Callable[[], bool] | None = None,
    ) -> None:
        """Run events until none are left, or until `finished` returns true.

        `settle` is called after all events of each time, and `finished` before the clock advances.
        """
        events = self._events
        while events and not (finished is not None and finished()):
            self._now_ps = events[0][0]
            while events and events[0][0] == self._now_ps:
                _, _, event, arguments = heappop(events)
                self.executed += 1
                event(*arguments)
            if settle is not None:
                settle()
