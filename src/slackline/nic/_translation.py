"""Translation of the engine's values: failures to exceptions, time limits to nanoseconds."""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache

import slackline.errors as errors

__all__ = ["FailureTuple", "interrupted", "nanoseconds", "to_error"]


FailureTuple = tuple[int, str, int, int, int, int]
"""The engine's form of a failure: (fault, message, rank, peer, tag, sequence); -1 for none."""

_ERRORS: dict[int, type[errors.SlacklineError]] = {
    1: errors.UsageError,
    2: errors.MismatchError,
    3: errors.PeerError,
    4: errors.LinkError,
    5: errors.FrameError,
    6: errors.TimeoutError,
    7: errors.ClosedError,
    8: errors.InternalError,
}


def to_error(failure: FailureTuple) -> errors.SlacklineError:
    """Return a new exception for `failure`; its first item is a code of slackline::Fault."""
    fault, message, rank, peer, tag, sequence = failure
    return _ERRORS[fault](
        message,
        rank=None if rank < 0 else rank,
        peer=None if peer < 0 else peer,
        tag=None if tag < 0 else tag,
        sequence=None if sequence < 0 else sequence,
    )


def interrupted(rank: int, what: str) -> FailureTuple:
    """Return the failure of an operation whose blocking call a signal handler has ended."""
    return (3, f"a signal interrupted rank {rank} in {what}", rank, -1, -1, -1)


_LONGEST_NS = 100 * 365 * 86400 * 10**9
"""A hundred years: the engine adds a timeout to its clock, in 64 bits."""


@lru_cache(maxsize=256)  # a program has few timeouts, and the division takes a microsecond
def nanoseconds(timeout: timedelta) -> int:
    """Return `timeout` in nanoseconds, the unit of the engine; longer ones as a hundred years."""
    return min(timeout // timedelta(microseconds=1) * 1000, _LONGEST_NS)
