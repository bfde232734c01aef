"""The cost of operations in one process: wall time, processor time, context switches."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass

from _harness.machine import idle_seconds


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The resources that one process, with all of its threads, has used for an operation."""

    seconds: float
    """The wall time in seconds."""
    user_s: float
    system_s: float
    voluntary: float
    """The number of context switches of threads that had to wait."""
    involuntary: float
    """The number of context switches of threads that were preempted."""
    idle_s: float
    """The time in which the machine's cores had nothing to do, in seconds, summed over cores."""

    def over(self, operations: int) -> Usage:
        """Return the usage divided by a number of operations."""
        return Usage(
            seconds=self.seconds / operations,
            user_s=self.user_s / operations,
            system_s=self.system_s / operations,
            voluntary=self.voluntary / operations,
            involuntary=self.involuntary / operations,
            idle_s=self.idle_s / operations,
        )

    def __add__(self, other: Usage) -> Usage:
        """Return the sum of two usages."""
        return Usage(
            seconds=self.seconds + other.seconds,
            user_s=self.user_s + other.user_s,
            system_s=self.system_s + other.system_s,
            voluntary=self.voluntary + other.voluntary,
            involuntary=self.involuntary + other.involuntary,
            idle_s=self.idle_s + other.idle_s,
        )


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The process's resource counters, and the machine's idle time, at one moment."""

    time_s: float
    user_s: float
    system_s: float
    voluntary: int
    involuntary: int
    idle_s: float

    @classmethod
    def now(cls) -> Reading:
        """Read the counters of this process and of the machine."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return cls(
            time_s=time.perf_counter(),
            user_s=used.ru_utime,
            system_s=used.ru_stime,
            voluntary=used.ru_nvcsw,
            involuntary=used.ru_nivcsw,
            idle_s=idle_seconds(),
        )

    def since(self, before: Reading, operations: int) -> Usage:
        """Return the average usage of `operations` operations since the reading `before`."""
        used = Usage(
            seconds=self.time_s - before.time_s,
            user_s=self.user_s - before.user_s,
            system_s=self.system_s - before.system_s,
            voluntary=self.voluntary - before.voluntary,
            involuntary=self.involuntary - before.involuntary,
            idle_s=self.idle_s - before.idle_s,
        )
        return used.over(operations)
