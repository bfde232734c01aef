"""torch's own door to changes of members (torch 2.14 and later, where it is experimental).

    init_process_group("slackline", enable_reconfigure=True)    a group without connections
    dist._get_reconfigure_handle()                              the handle of this process
    dist._reconfigure(uuid, handles)                            a change; torch's object stays

After a change the same object of torch runs on another Group of the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

from torch import distributed as dist

from slackline.backend import SlacklineGroup, create
from slackline.backend.operations import TransferWork
from slackline.elastic._change import changing
from slackline.elastic._handle import open_door
from slackline.errors import TimeoutError, UsageError
from slackline.nic import Group, NicOptions, TagAllocator

__all__ = ["ReconfigurableGroup", "reconfigurable_group"]

_WAY_OUT = "torch.distributed._reconfigure connects it"


class _Unconnected:
    """The place of an engine's Group in a process group that has none at the moment.

    Every operation raises UsageError.
    """

    record = None  # The flight recorder has no entry of it.

    def __init__(self, rank: int, size: int, timeout: timedelta, why: str) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self.tag_allocator = TagAllocator()
        self._why = why

    def close(self, timeout: timedelta | None = None) -> None:
        """Do nothing: there is nothing to close."""

    def abort(self, reason: str) -> None:
        """Do nothing: there is nothing to abort."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Protocols of Python, which ask what the object can do.
            raise AttributeError(name)
        raise UsageError(self._why)


class ReconfigurableGroup(SlacklineGroup):
    """A process group whose members `torch.distributed._reconfigure` changes in place.

    Before the first change, and after an abort, operations raise UsageError. An operation that
    times out aborts the group.
    """

    supports_reconfigure = True

    def __init__(self, opts: Any, options: NicOptions | None) -> None:
        self._options = options
        why = f"the group has no connections before its first change: {_WAY_OUT}"
        nothing: Any = _Unconnected(opts.group_rank, opts.group_size, opts.timeout, why)
        super().__init__(nothing, opts.store, lambda: None)

    # torch's own methods would give the rank and the size that the group had at its start.
    def rank(self) -> int:
        return self._me

    def getRank(self) -> int:  # noqa: N802
        return self._me

    def size(self) -> int:
        return self._ranks

    def getSize(self) -> int:  # noqa: N802
        return self._ranks

    def get_reconfigure_handle(self) -> str:
        """Return the handle of this process, as `slackline.elastic.get_handle` does."""
        return open_door().handle.encode()

    def reconfigure(self, opts: Any) -> dist.Work:
        """Change the members, and return a Work that has ended.

        `opts` are torch's ReconfigureOptions. Ranks are the places in a list of handles; a set is
        sorted. Blocks until all new members have made the call. Raises the errors of
        `slackline.elastic.reconfigure`; then the group is as it was.
        """
        handles = opts.handles
        given = opts.timeout
        self.change(
            f"torch {opts.uuid}",
            sorted(handles) if isinstance(handles, set) else handles,
            self.default_timeout if given is None or given <= timedelta() else given,
        )
        return self._done

    def change(self, number: str, handles: Sequence[str], timeout: timedelta) -> None:
        """Change the members as `slackline.elastic.reconfigure` does, but keep this object."""
        limit = self.default_timeout
        with changing(number, handles, timeout=timeout, limit=limit, options=self._options) as (
            opened,
            membership,
        ):
            self.end_at_once()
            create.hand_over(opened, self, membership)

    def abort(self) -> None:
        """Revoke the group: posted operations fail on every rank; a change repairs the group."""
        if self._ended:
            return
        super().abort()
        why = f"the group was aborted: {_WAY_OUT} again"
        nothing: Any = _Unconnected(self._me, self._ranks, self.default_timeout, why)
        self._post_on(nothing)

    def allreduce(self, *args: Any, **kwargs: Any) -> dist.Work:
        with self._revoked_by_timeout():  # It posts short blocking ones by itself.
            return super().allreduce(*args, **kwargs)

    def _post(self, *args: Any, **kwargs: Any) -> dist.Work:
        with self._revoked_by_timeout():
            return super()._post(*args, **kwargs)

    def _remember(self, work: TransferWork, number: Any) -> dist.Work:
        work.on_timeout = partial(self._revoke, self._nic)
        return super()._remember(work, number)

    @contextmanager
    def _revoked_by_timeout(self) -> Iterator[None]:
        nic = self._nic
        try:
            yield
        except TimeoutError:
            self._revoke(nic)
            raise

    def _revoke(self, nic: Group) -> None:
        """Abort the group after an operation on `nic`, unless a change has replaced that."""
        if self._nic is nic:
            self.abort()


def reconfigurable_group(opts: Any, options: NicOptions | None) -> ReconfigurableGroup:
    """Create a group for `init_process_group(..., enable_reconfigure=True)`.

    `opts` are torch's options of the group, `options` the user's `pg_options`.
    """
    return ReconfigurableGroup(opts, options)
