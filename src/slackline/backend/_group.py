"""The process group that torch sees, composed of classes for each family of operations."""

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist
from torch.distributed.constants import default_pg_timeout

from slackline.backend._dispatched import (
    DispatcherView,
    dispatched,
    serve_operators,
    show,
    through_dispatcher,
)
from slackline.backend._hooked import HOOKS, Hooks, watch_attachments
from slackline.backend._identity import NAME
from slackline.backend._store_prefix import Membership
from slackline.backend._torch import (
    BackendOptions,
    Store,
    excluded_from_compile,
    serve_set_pg_timeout,
)
from slackline.backend.operations import DataMovement, DeviceOf, PointToPoint, Reductions
from slackline.backend.staging import device_of
from slackline.errors import UsageError
from slackline.nic import Group

if TYPE_CHECKING:
    from slackline.backend.flight import GroupRecord

__all__ = ["SlacklineGroup"]


@excluded_from_compile
@dispatched
class SlacklineGroup(Hooks, Reductions, DataMovement, PointToPoint):
    """A torch ProcessGroup whose operations run on a NIC engine's Group.

    `on_end` is called once, when the group has ended. Further operations raise ClosedError.
    """

    stands_for = NAME
    """The name of the backend under which torch knows the group."""

    def __init__(
        self,
        nic: Group,
        store: Store,
        on_end: Callable[[], None],
        *,
        device_of: DeviceOf = device_of,
    ) -> None:
        """Create the process group of an engine's Group.

        `device_of` returns the accelerator that stages the tensors of a torch device, or None.
        """
        super().__init__(nic, store, device_of)
        serve_operators()
        serve_set_pg_timeout()
        if HOOKS:
            watch_attachments()
        self._on_end = on_end
        self._view: DispatcherView | None = None
        self._ended = False
        self._process = os.getpid()
        self.membership: Membership | None = None
        """The members that can shrink the group, and their store; None if torch did not make it."""
        self.open_beside: Callable[[BackendOptions, Any], SlacklineGroup] | None = None
        """A function that opens another group on the same engine; None without a factory."""

    def run_on(self, nic: Group, store: Store, on_end: Callable[[], None]) -> None:
        """Run on another Group of the engine from now on, with `store` for what torch keeps.

        The group must have ended, or have posted nothing yet.
        """
        self._post_on(nic)
        self._store, self._on_end, self._ended = store, on_end, False
        self._set_group_name(self._name)
        self._set_group_desc(self._desc)

    @property
    def job_ranks(self) -> Sequence[int]:
        """The members' ranks in the default group."""
        return self._callbacks.identity.members

    @job_ranks.setter
    def job_ranks(self, ranks: Sequence[int]) -> None:
        self._callbacks.identity.members = tuple(ranks)

    @property
    def nic(self) -> Group:
        """The NIC engine's Group under this process group."""
        return self._nic

    def opened_beside(self, opts: BackendOptions, options: Any) -> "SlacklineGroup":
        """Open another group on the same engine; raise UsageError if the group cannot."""
        if self.open_beside is None or self._ended:
            raise UsageError("only an open group of torch.distributed can make other groups")
        return self.open_beside(opts, options)

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Sequence[torch.device] | None = None,
    ) -> Any:
        """Return a group of `ranks` alone; None at a rank that is not among them."""
        from slackline.backend._offspring import split  # Most programs split no group.

        return split(
            self,
            ranks,
            timeout=timeout,
            options=opts,
            name=group_name,
            description=group_desc,
            devices=device_types,
        )

    def merge_remote_group(
        self,
        store: Store,
        size: int,
        timeout: timedelta = default_pg_timeout,
        group_name: str | None = None,
        group_desc: str | None = None,
    ) -> Any:
        """Return a group of all `size` processes that meet in `store`."""
        from slackline.backend._offspring import merged  # Most programs merge no groups.

        return merged(self, store, size, timeout=timeout, name=group_name, description=group_desc)

    def _get_sequence_number_for_group(self) -> int:
        return self._collectives

    def allreduce_sparse(self, tensors: Any, opts: Any) -> dist.Work:
        return self.allreduce(tensors, opts)

    def dispatcher_view(self) -> DispatcherView:
        """Return the group whose operations are torch's own, which pass through its dispatcher."""
        if self._view is None:
            self._view = DispatcherView(self)
        return self._view

    def _dispatch(self, name: str, *args: Any, **kwargs: Any) -> dist.Work:
        return through_dispatcher(self, name, args, kwargs)

    def _show(self, name: str, *args: Any, **kwargs: Any) -> None:
        show(self, name, args, kwargs)

    def _set_group_name(self, name: str) -> None:
        super()._set_group_name(name)
        self._callbacks.identity.name = name
        if (record := self._record()) is not None:
            record.name = name

    def _set_group_desc(self, desc: str) -> None:
        super()._set_group_desc(desc)
        if (record := self._record()) is not None:
            record.description = desc

    def _record(self) -> "GroupRecord | None":
        """Return the group's entry in the flight recorder; None without a recorder."""
        # Only a RecordedGroup has one. Its class is not named, since few programs import it.
        return getattr(self._nic, "record", None)

    def shutdown(self) -> None:
        """End the process group in good order; block until posted operations are flushed.

        torch's destroy_process_group calls this method. If an operation on an accelerator failed
        after a stream had begun to wait for the operation, and no call has raised such an error
        before, raises the operation's error. In a forked child the call only forgets the group,
        which belongs to the parent.
        """
        if self._ended or self._inherited():
            return
        self._ended = True
        try:
            if self._staging is not None:
                self._staging.close()
            self._nic.close()
            if self._staging is not None:
                self._staging.end()
        except BaseException:  # such as KeyboardInterrupt: what is posted is given up
            self._nic.close(timedelta())
            raise
        finally:
            self._callbacks.sequencer.close()
            self._callbacks.dropped.clear()
            self._on_end()

    def abort(self) -> None:
        """End the process group at once; pending operations fail on every rank.

        In a forked child the call only forgets the group.
        """
        if self._ended or self._inherited():
            return
        try:
            self._nic.abort("the process group was aborted")
        finally:
            self.end_at_once()

    def end_at_once(self) -> None:
        """End the process group; operations that are still posted fail on this rank.

        In a forked child the call only forgets the group.
        """
        if self._ended or self._inherited():
            return
        self._ended = True
        try:
            if self._staging is not None:
                self._staging.close()
            self._nic.close(timedelta())  # zero: do not wait for posted operations
        finally:
            self._callbacks.sequencer.close()
            self._callbacks.dropped.clear()
            self._on_end()

    def _inherited(self) -> bool:
        """Forget the group in a forked child; return whether this process is one.

        torch's destroy_process_group thus succeeds there, and the child can open its own groups.
        """
        if os.getpid() == self._process:
            return False
        self._ended = True
        self._callbacks.dropped.clear()
        return True
