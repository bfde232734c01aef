"""The cost of operations at one process: wall time, processor time, context switches."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Usage:
    """An operation's share of what one process has used, all of its threads."""

    seconds: float
    """Wall time."""
    user_s: float
    system_s: float
    voluntary: float
    """Context switches of threads that had to wait."""
    involuntary: float
    """Context switches of threads that had to leave their core to others."""

    def over(self, operations: int) -> Usage:
        """Return the share of one of `operations` operations."""
        return Usage(
            seconds=self.seconds / operations,
            user_s=self.user_s / operations,
            system_s=self.system_s / operations,
            voluntary=self.voluntary / operations,
            involuntary=self.involuntary / operations,
        )

    def __add__(self, other: Usage) -> Usage:
        """Return what two spans used together."""
        return Usage(
            seconds=self.seconds + other.seconds,
            user_s=self.user_s + other.user_s,
            system_s=self.system_s + other.system_s,
            voluntary=self.voluntary + other.voluntary,
            involuntary=self.involuntary + other.involuntary,
        )


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

    def since(self, before: Reading, operations: int) -> Usage:
        """Return the share of one of the `operations` operations since `before`."""
        used = Usage(
            seconds=self.time_s - before.time_s,
            user_s=self.user_s - before.user_s,
            system_s=self.system_s - before.system_s,
            voluntary=self.voluntary - before.voluntary,
            involuntary=self.involuntary - before.involuntary,
        )
        return used.over(operations)
