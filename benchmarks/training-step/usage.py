"""The cost of a step at one rank: wall time, processor time, context switches, Python calls."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Usage:
    """A step's share of what one rank's process has used, all of its threads."""

    step_s: float
    """Wall time."""
    user_s: float
    system_s: float
    voluntary: float
    """Context switches of threads that had to wait."""
    involuntary: float
    """Context switches of threads that had to leave their core to others."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The process's counters at one moment."""

    time_s: float
    user_s: float
    system_s: float
    voluntary: int
    involuntary: int

    @classmethod
    def now(cls) -> Reading:
        """Read the counters."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return cls(
            time_s=time.perf_counter(),
            user_s=used.ru_utime,
            system_s=used.ru_stime,
            voluntary=used.ru_nvcsw,
            involuntary=used.ru_nivcsw,
        )

    def since(self, before: Reading, steps: int) -> Usage:
        """Return the share of one of the `steps` steps taken after `before`."""
        return Usage(
            step_s=(self.time_s - before.time_s) / steps,
            user_s=(self.user_s - before.user_s) / steps,
            system_s=(self.system_s - before.system_s) / steps,
            voluntary=(self.voluntary - before.voluntary) / steps,
            involuntary=(self.involuntary - before.involuntary) / steps,
        )


def python_calls(act: Callable[[], object]) -> int:
    """Return how many functions written in Python this thread calls in `act`."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(before)
    return calls
