"""The times for which a thread ran on a core, and waited for one, as Linux counts them.

The first two numbers of /proc/thread-self/schedstat are these times in nanoseconds since the start
of the thread (Linux, Documentation/scheduler/sched-stats.rst). The kernel adds the time of a
running thread at each tick of the scheduler, so that a reading may be up to one tick (1 to 10 ms)
behind. One reading takes about a microsecond.
"""

import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

__all__ = ["CoreTimes", "open_core_times"]

_SCHEDSTAT = Path("/proc/thread-self/schedstat")
_LONGEST = 64
"""The length in bytes that three numbers of 20 digits do not exceed."""


class CoreTimes(NamedTuple):
    """Times of one thread, in nanoseconds."""

    run_ns: int
    """The time for which the thread ran on a core."""
    delay_ns: int
    """The time for which the thread could have run and waited for a core."""

    def since(self, before: "CoreTimes") -> "CoreTimes":
        """Return the growth of both times since the reading `before`."""
        return CoreTimes(self.run_ns - before.run_ns, self.delay_ns - before.delay_ns)


def open_core_times(path: Path = _SCHEDSTAT) -> Callable[[], CoreTimes] | None:
    """Return a function that returns the times of the calling thread so far.

    The thread that calls `open_core_times` is the one whose times are read, whichever thread calls
    the result. Returns None where the kernel does not state the times.
    """
    try:
        reader = _Reader(path)
        reader()
    except (OSError, ValueError, IndexError):
        return None
    return reader


class _Reader:
    """An open file of scheduler statistics, closed with the object."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._latest = CoreTimes(0, 0)
        weakref.finalize(self, os.close, self._file)

    def __call__(self) -> CoreTimes:
        with suppress(ProcessLookupError):  # The times of a thread that has ended grow no more.
            numbers = os.pread(self._file, _LONGEST, 0).split()
            self._latest = CoreTimes(int(numbers[0]), int(numbers[1]))
        return self._latest
