"""The cores of a host while a simulation runs, and the threads that take turns on them."""

from collections import deque
from collections.abc import Callable
from fractions import Fraction
from math import ceil
from typing import Any

from slackline.sim._events import EventQueue

__all__ = ["Processor", "Thread"]

_UNCHANGED = Fraction(1)


class Processor:
    """The cores of one host: a thread that has work takes a free core or waits in order."""

    def __init__(self, events: EventQueue, cores: int) -> None:
        self.events = events
        self._free = cores
        self._ready: deque[Thread] = deque()

    def want(self, thread: "Thread") -> None:
        """Give the thread a core, now or when the threads before it have had theirs."""
        self._ready.append(thread)
        self._assign()

    def withdraw(self, thread: "Thread") -> None:
        """Remove a thread that waits for a core."""
        self._ready.remove(thread)

    def release(self) -> None:
        """Take back the core of a thread that has finished a task or was stopped."""
        self._free += 1
        self._assign()

    def _assign(self) -> None:
        while self._free and self._ready:
            self._free -= 1
            self._ready.popleft().begin()


class Thread:
    """A thread of one rank: its tasks run one after another, each on one core of the host."""

    def __init__(self, processor: Processor) -> None:
        self._processor = processor
        self._tasks: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._work: deque[Fraction] = deque()
        self._running = False
        self._waiting = False
        self._stopped = False
        self._slowness = _UNCHANGED
        self._started_ps = 0
        self._turn = 0
        self.busy_ps = 0
        """The time for which the thread has had a core, in picoseconds."""

    def run(self, work_ps: int, event: Callable[..., None], *arguments: Any) -> None:
        """Call `event(*arguments)` after `work_ps` of work; tasks keep their order.

        A task without work of a thread that has nothing else to do runs at once.
        """
        if not work_ps and not self._tasks and not self._stopped:
            event(*arguments)
            return
        self._tasks.append((event, arguments))
        self._work.append(Fraction(work_ps))
        self._go_on()

    def begin(self) -> None:
        """Start or continue the first task; called by the processor with a core for it."""
        self._waiting, self._running = False, True
        self._started_ps = self._processor.events.now_ps
        self._turn += 1
        end_ps = self._started_ps + ceil(self._work[0] * self._slowness)
        self._processor.events.at(end_ps, self._ended, self._turn)

    def condition(self, slowness: Fraction, *, stopped: bool) -> None:
        """Change how much slower than usual the thread works, and whether it works at all."""
        if (slowness, stopped) == (self._slowness, self._stopped):
            return
        if self._running:
            self._interrupt()
        elif self._waiting:
            self._processor.withdraw(self)
            self._waiting = False
        self._slowness, self._stopped = slowness, stopped
        self._go_on()

    def _interrupt(self) -> None:
        """Put back the unfinished part of the task that runs."""
        elapsed_ps = self._processor.events.now_ps - self._started_ps
        self.busy_ps += elapsed_ps
        self._work[0] = max(Fraction(0), self._work[0] - elapsed_ps / self._slowness)
        self._running = False
        self._turn += 1
        self._processor.release()

    def _go_on(self) -> None:
        if self._tasks and not (self._running or self._waiting or self._stopped):
            self._waiting = True
            self._processor.want(self)

    def _ended(self, turn: int) -> None:
        if turn != self._turn:
            return  # The task was interrupted after this event had been scheduled.
        self.busy_ps += self._processor.events.now_ps - self._started_ps
        self._running = False
        event, arguments = self._tasks.popleft()
        self._work.popleft()
        self._processor.release()
        event(*arguments)
        self._go_on()
