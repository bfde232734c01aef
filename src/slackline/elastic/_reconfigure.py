"""The calls by which the members of the default group change: `get_handle` and `reconfigure`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from torch import distributed as dist

from slackline._lazy import record
from slackline.backend import SlacklineGroup, create, replace_default_group
from slackline.elastic._change import changing
from slackline.elastic._handle import open_door
from slackline.elastic._reconfigurable import ReconfigurableGroup
from slackline.errors import UsageError

__all__ = ["Reconfigured", "get_handle", "reconfigure"]

_HALF_HOUR = timedelta(minutes=30)
"""The time limit of operations in the first group of a process, as torch has it."""


@record(frozen=True, kw_only=True)
class Reconfigured:
    """The place of this process in the default group after a change of its members."""

    rank: int
    size: int


def get_handle() -> str:
    """Return the handle of this process: a string of at most 1 KiB for lists of `reconfigure`.

    The first call opens a TCP port. The handle names the addresses that SLACKLINE_INTERFACE and
    SLACKLINE_LISTEN allow; the port listens there if it is one address, and else at all addresses
    of the host. The handle stays the same until the process ends. Whoever can connect to the port
    can disturb the changes of this process, as with the port of torch's own store.

    Raises UsageError if the host has no such address.
    """
    return open_door().handle.encode()


def reconfigure(
    number: str, handles: Sequence[str], *, timeout: timedelta = timedelta(seconds=30)
) -> Reconfigured:
    """Change the members of the default group to the processes that `handles` name.

    Every process of the new group makes the call, with the same `handles`; its rank is the place of
    its handle in the list. A process may be alone, come new, or come from another group; a process
    that is not in the list makes no call, and its old group ends with a PeerError. `number` names
    the change and is used once. The engine and the links between processes that stay are kept. All
    other process groups of torch are destroyed with their posted operations, and models must be
    wrapped again.

    After an error the old group is as it was, on every process that is alive, and a fresh number
    may be tried at once. Raises UsageError for a list that is wrong, and for a number that was used
    before; MismatchError if another process has another list; PeerError if another process has
    failed; LinkError if the process of the first handle cannot be reached; TimeoutError if a
    process has not come within `timeout`, with its rank.
    """
    before = dist.group.WORLD if dist.is_initialized() else None
    if before is not None and not isinstance(before, SlacklineGroup):
        raise UsageError(f"the default group must be of backend slackline, not {before.name()}")
    if isinstance(before, ReconfigurableGroup):
        before.change(number, handles, timeout)
        return Reconfigured(rank=before.rank(), size=before.size())
    limit = _HALF_HOUR if before is None else before.default_timeout
    with changing(number, handles, timeout=timeout, limit=limit) as (opened, membership):
        create.close_others(opened)
        replace_default_group(membership, opened, timeout=limit)
    return Reconfigured(rank=opened.rank, size=opened.size)
