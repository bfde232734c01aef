"""The time for which a thread could have run and waited for a core, as Linux counts it.

The second number of /proc/thread-self/schedstat is that time in nanoseconds since the start of the
thread (Linux, Documentation/scheduler/sched-stats.rst). One reading takes about a microsecond.
"""

import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

__all__ = ["open_run_delay"]

_SCHEDSTAT = Path("/proc/thread-self/schedstat")
_LONGEST = 64
"""The length in bytes that three numbers of 20 digits do not exceed."""


def open_run_delay(path: Path = _SCHEDSTAT) -> Callable[[], int] | None:
    """Return a function that returns the waiting time of the calling thread so far, in nanoseconds.

    The thread that calls `open_run_delay` is the one whose time is read, whichever thread calls the
    result. Returns None where the kernel does not state the time.
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
        self._latest_ns = 0
        weakref.finalize(self, os.close, self._file)

    def __call__(self) -> int:
        with suppress(ProcessLookupError):  # The time of a thread that has ended grows no more.
            self._latest_ns = int(os.pread(self._file, _LONGEST, 0).split()[1])
        return self._latest_ns
