"""Time limits as torch passes them: not set, longer than the engine can count, or not positive."""

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

from torch.distributed import distributed_c10d

from slackline.errors import UsageError

__all__ = ["UNSET", "serve_set_pg_timeout", "time_limit", "wait_limit"]

UNSET = timedelta(milliseconds=-1)
"""The mark by which torch says that an operation has no timeout of its own."""
_LONGEST = timedelta(days=36_500)
"""The engine counts nanoseconds in 64 bits, and torch counts microseconds."""


def time_limit(timeout: timedelta) -> timedelta:
    """Return a timeout that the engine can count: `timeout`, or 100 years in place of a longer one.

    A float is a number of seconds, as it is in torch. Raises UsageError unless the timeout is
    positive.
    """
    if isinstance(timeout, float) and timeout > 0:
        return timedelta(seconds=min(timeout, _LONGEST.total_seconds()))
    if not isinstance(timeout, timedelta):
        raise UsageError(f"a timeout must be a positive datetime.timedelta, not {timeout!r}")
    if timeout <= timedelta():
        note = "; torch turns timedelta.max into this value: give 36,500 days"
        raise UsageError(
            f"a timeout must be positive, not {timeout}{note if timeout < -_LONGEST else ''}"
        )
    return min(timeout, _LONGEST)


def wait_limit(timeout: timedelta) -> timedelta | None:
    """Return the time limit of a wait; None, the operation's own limit, for torch's zero."""
    return None if not timeout or timeout == UNSET else time_limit(timeout)


def serve_set_pg_timeout() -> None:
    """Have torch's `_set_pg_timeout` set the timeout of slackline's groups.

    torch's function knows the classes of gloo and NCCL only: for all other groups it warns and does
    nothing. A second call changes nothing.
    """
    untyped: Any = distributed_c10d
    torchs = getattr(untyped, "_set_pg_timeout", None)
    if torchs is not None and torchs not in _served:
        untyped._set_pg_timeout = _with_groups(torchs)
        _served.append(untyped._set_pg_timeout)


_served: list[Callable[..., None]] = []
"""The function in torch's place, once it is there."""


def _with_groups(torchs: Callable[..., None]) -> Callable[..., None]:
    @wraps(torchs)
    def set_pg_timeout(timeout: timedelta, group: Any = None) -> None:
        known: Any = distributed_c10d.group.WORLD if group is None else group
        name = getattr(known, "stands_for", None)
        if name is not None and name == known.name():
            known.set_timeout(timeout)
        else:  # including slackline's groups that stand for gloo's
            torchs(timeout, group)

    return set_pg_timeout
