"""What happens next: events in order of time, and of their making where times are equal."""

from collections.abc import Callable
from heapq import heappop, heappush

from slackline.errors import UsageError

__all__ = ["EventQueue"]


class EventQueue:
    """A clock of integer picoseconds that jumps from one event to the next.

    Equal times run in the order of `at`: the same calls give the same trace. Who decides something
    does so in `settle`, when everything that happens at one time has happened.
    """

    def __init__(self) -> None:
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._made = 0
        self._now_ps = 0

    @property
    def now_ps(self) -> int:
        """The time of the event that runs."""
        return self._now_ps

    def at(self, time_ps: int, event: Callable[[], None]) -> None:
        """Runs `event` at that time, which must not be past."""
        if time_ps < self._now_ps:
            raise UsageError(f"an event at {time_ps} ps is past: it is {self._now_ps} ps")
        heappush(self._events, (time_ps, self._made, event))
        self._made += 1

    def run(self, settle: Callable[[], None]) -> None:
        """Runs events until there are none; calls `settle` after all of one time."""
        while self._events:
            self._now_ps = self._events[0][0]
            while self._events and self._events[0][0] == self._now_ps:
                heappop(self._events)[2]()
            settle()
