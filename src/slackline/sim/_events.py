"""The event queue of the simulator: events ordered by time, then by the order of their creation."""

from collections.abc import Callable
from heapq import heappop, heappush

from slackline.errors import UsageError

__all__ = ["EventQueue"]


class EventQueue:
    """A clock of integer picoseconds that jumps from one event to the next.

    Events of equal time run in the order of the calls of `at`, so the same calls give the same
    trace. Decisions belong in `settle`, which runs after all events of one time.
    """

    def __init__(self) -> None:
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._made = 0
        self._now_ps = 0

    @property
    def now_ps(self) -> int:
        """The time of the event that runs now."""
        return self._now_ps

    def at(self, time_ps: int, event: Callable[[], None]) -> None:
        """Schedule `event` for that time; raises UsageError for a time in the past."""
        if time_ps < self._now_ps:
            raise UsageError(f"an event at {time_ps} ps is past: it is {self._now_ps} ps")
        heappush(self._events, (time_ps, self._made, event))
        self._made += 1

    def run(self, settle: Callable[[], None]) -> None:
        """Run events until none is left; call `settle` after all events of one time."""
        while self._events:
            self._now_ps = self._events[0][0]
            while self._events and self._events[0][0] == self._now_ps:
                heappop(self._events)[2]()
            settle()
