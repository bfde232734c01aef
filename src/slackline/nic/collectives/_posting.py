"""Time limits in the unit of the engine."""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache

__all__ = ["nanoseconds"]


_LONGEST_NS = 100 * 365 * 86400 * 10**9
"""A hundred years: the engine adds a timeout to its clock, in 64 bits."""


@lru_cache(maxsize=256)  # a program has few timeouts, and the division takes a microsecond
def nanoseconds(timeout: timedelta) -> int:
    """Return `timeout` in nanoseconds, the unit of the engine; longer ones as a hundred years."""
    return min(timeout // timedelta(microseconds=1) * 1000, _LONGEST_NS)
