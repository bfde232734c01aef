"""The counters of a process's devices, of all its groups together."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

__all__ = ["DeviceCounts"]


class DeviceCounts:
    """A sum of the latest counters of several devices, each of which has a thread of its own."""

    def __init__(self, report: Callable[[Mapping[str, int]], None]) -> None:
        """Create the sum, which is reported at each change."""
        self._report = report
        self._lock = threading.Lock()
        self._latest = Counter[str]()
        """The sum over all devices."""

    def of_device(self) -> Callable[[Mapping[str, int]], None]:
        """Return the function that takes the present counters of one more device."""
        return partial(self._take, Counter[str]())

    def _take(self, before: Counter[str], counters: Mapping[str, int]) -> None:
        with self._lock:
            self._latest.update(counters)
            self._latest.subtract(before)
            before.clear()
            before.update(counters)
            self._report(dict(self._latest))
