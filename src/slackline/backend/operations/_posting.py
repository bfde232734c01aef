"""The common path of all operations: torch's call, the nic's operation, and the returned Work.

Each thread's operations that torch's dispatcher has and has not returned yet are kept here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import distributed as dist

from slackline.backend._identity import Identity
from slackline.backend._torch import UNSET, Store, excluded_from_compile, time_limit
from slackline.backend.operations._callbacks import (
    GroupCallbacks,
    Number,
    Order,
    current,
    placed,
    tags_here,
)
from slackline.backend.operations._work import (
    CoalescedWork,
    CompletedWork,
    StagedWork,
    TransferWork,
)
from slackline.backend.profiling import Facts, profiling, recorded_work
from slackline.backend.staging import AllOf, Continuation, HostBuffers, NeedsDispatcher
from slackline.nic import Group, Kind, Operation, Prepared, Transfer

if TYPE_CHECKING:
    from slackline.backend.operations._staging import GroupStaging
    from slackline.backend.staging import Device, DeviceBuffers, Piece, StagedTransfer


@dataclass(slots=True)
class Call:
    """An operation that the dispatcher has and has not yet given back."""

    reduction: Any = None
    """The operation's dist.ReduceOp; None without a reduction."""
    works: list[dist.Work] = field(default_factory=list)
    """The Works of the operations that reached a kernel: one for each part of a wrapper."""


class InDispatcher(threading.local):
    """The calling thread's operations within the dispatcher."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        """The operations that the dispatcher has, innermost last."""
        self.kernels = 0
        """The number of kernels that run, which have the operation's real tensors."""
        self.shows = False
        """Whether an operator is called only to be recorded by torch's tools."""


in_dispatcher = InDispatcher()


def check_modes() -> None:
    """Raise NeedsDispatcher if a dispatch mode is active that has not seen the operation yet."""
    if torch._C._len_torch_dispatch_stack() and not in_dispatcher.kernels:
        raise NeedsDispatcher


_DROPPED = 64
"""The dropped Works that stay alive for torch's C++ code, which may still wait for one of them.
DistributedDataParallel needs its latest Work until its backward pass."""

DeviceOf: TypeAlias = "Callable[[torch.device], Device | None]"

_ORDERS = {Kind.SEND: Order.SEND, Kind.RECV: Order.RECEIVE}
"""The orders of messages; all other operations are collectives."""

__all__ = ["DeviceOf", "Poster"]


@excluded_from_compile
class Poster(Identity):
    """The base class of a group's operations, which posts them and makes their Works.

    Collectives are matched between ranks by the order of the calls, and those that are posted in a
    callback of a Future by their place. An operation on a CUDA tensor can be posted only after the
    tensor's copy to the host. From the first such operation on, threads (GroupStaging) therefore
    post the operations of the group.
    """

    def __init__(self, nic: Group, store: Store, device_of: DeviceOf) -> None:
        super().__init__(store, nic.rank, nic.size, nic.timeout)
        self._device_of = device_of
        self._done = CompletedWork()
        self._post_on(nic)

    def _post_on(self, nic: Group) -> None:
        """Post the operations from now on on `nic`; they are numbered from zero."""
        self._nic = nic
        self._ranks = nic.size
        self._me = nic.rank
        self._barrier_tag = nic.tag_allocator.reserve_messages(1)
        self._staging: GroupStaging | None = None
        if self._device_of(torch.device("cpu")) is not None:
            self.staging()
        self._coalesced: list[dist.Work] | None = None
        self._callbacks = GroupCallbacks(nic.size, _DROPPED)
        self._prepared: dict[int, Prepared] = {}
        """The prepared all_reduces of `Reductions`, by number and type of elements."""
        self._collectives = 0
        """The number of collectives so far; equal numbers mean the same collective on all ranks.
        Operations that are posted in callbacks are not counted, but have identities."""
        self._messages = 0

    def staging_device(self, device: torch.device) -> Device | None:
        """Return the accelerator that stages the group's tensors on `device`; None for the CPU.

        Raises UsageError for a device other than cpu and cuda.
        """
        return self._device_of(device)

    def errors_are_known(self) -> None:
        """Have the end of the group raise no error of an operation on an accelerator.

        The program knows their cause, such as the loss of a rank. The errors are logged.
        """
        if self._staging is not None:
            self._staging.errors_are_known()

    def settle(self) -> None:
        """Block until the group's operations on accelerators have ended.

        Raises the error of an operation that failed after a stream had begun to wait for the
        operation.
        """
        if self._staging is not None:
            self._staging.settle()

    def _dispatch(self, name: str, *args: Any, **kwargs: Any) -> dist.Work:
        """Call an operation through torch's dispatcher, which calls it back with plain tensors."""
        raise NotImplementedError

    def _show(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Show an operation to torch's tools that record operators."""
        raise NotImplementedError

    def _buffers_for(self, tensor: torch.Tensor) -> HostBuffers | DeviceBuffers:
        """Return new buffers in host memory for an operation on this tensor's device.

        Raises UsageError for a device other than cpu and cuda, and the errors of
        `GroupStaging.admit`, and of `check_modes`.
        """
        check_modes()
        if self._staging is not None:
            self._staging.admit()
        device = self._device_of(tensor.device)
        if device is None:
            return HostBuffers()
        return self.staging().buffers(device)

    def staging(self) -> GroupStaging:
        """Return what posts the operations on accelerators; the first call makes it."""
        if self._staging is None:
            # A group without tensors on an accelerator needs none of the modules for them.
            from slackline.backend.operations._staging import GroupStaging

            self._staging = GroupStaging()
        return self._staging

    def _run(
        self,
        operation: Operation | Sequence[Operation],
        buffers: HostBuffers | DeviceBuffers,
        results: Sequence[torch.Tensor],
        opts: Any,
        timeout: timedelta | None = None,
        *,
        name: str = "",
    ) -> dist.Work:
        """Post an operation, or several as one, on the NIC engine and return its torch Work.

        `opts` are torch's options or None; `timeout` is the timeout of a call without options. If
        the options ask for a synchronous call, block until the operation is done, unless the group
        has already used CUDA tensors. In a profile, the operation has `name`, or its kind's, and a
        message shows its peer and tag, a collective its number.
        """
        given = [operation] if isinstance(operation, Operation) else operation
        parts = placed(given, self._callbacks.identity)
        order = _ORDERS.get(parts[0].kind, Order.COLLECTIVE) if parts else Order.COLLECTIVE
        self._count(order)
        limit = self._limit(opts, timeout)
        blocking = opts is not None and not opts.asyncOp
        if not profiling():
            return self._post(parts, buffers, results, limit, blocking, order)

        def post() -> dist.Work:
            return self._post(parts, buffers, results, limit, blocking, order)

        message = None
        if order is not Order.COLLECTIVE:
            peer, tag = parts[0].peer, parts[0].tag
            message = {"peer": -1 if peer is None else peer, "tag": 0 if tag is None else tag}
        shown = name or str(parts[0].kind if parts else Kind.BARRIER)
        return recorded_work(shown, post, blocking, results, self._facts(message))

    def _run_in_pieces(
        self,
        name: str,
        post: Callable[[timedelta | None], dist.Work],
        results: Sequence[torch.Tensor],
        opts: Any,
        timeout: timedelta | None,
    ) -> dist.Work:
        """Post a collective in pieces by the call `post(timeout)`; return the collective's Work.

        The other arguments have the same meaning as in `_run`.
        """
        self._count(Order.COLLECTIVE)
        limit = self._limit(opts, timeout)
        if not profiling():
            return post(limit)
        blocking = opts is not None and not opts.asyncOp
        return recorded_work(name, lambda: post(limit), blocking, results, self._facts(None))

    def _posting_of_rows(
        self,
        device: Device,
        pieces: Sequence[Piece],
        piece_of: Callable[[Sequence[int], int, int | None], Operation],
        target: torch.Tensor,
        home: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> Callable[[timedelta | None], dist.Work]:
        """Return a function of the timeout that posts the pieces of a collective on a device.

        A piece has a row of host memory for each rank. `piece_of` returns its operation, from the
        rows' addresses, the elements of a row, and a tag. The Work has the result `target`; `home`
        is as in `GroupStaging.post_pieces`.
        """
        staging = self.staging()
        staging.admit()
        tags = tags_here(self._callbacks.identity)

        def post(timeout: timedelta | None) -> dist.Work:
            def post_piece(host: torch.Tensor) -> Transfer:
                rows = host.view(self._ranks, -1)
                places = [row.data_ptr() for row in rows]
                return self._nic.post(piece_of(places, rows.shape[1], next(tags)), timeout=timeout)

            transfer = staging.post_pieces(device, pieces, post_piece, home=home)
            return self._staged_work(transfer, [target], Order.COLLECTIVE)

        return post

    def _facts(self, message: Facts | None) -> Facts:
        callback = current()
        said: Facts
        if message is not None:
            said = message
        elif callback is not None:
            said = {"sequence": str(callback.posted)}
        else:
            said = {"sequence": self._collectives - 1}
        return {"group": self._name, **said}

    def _count(self, order: Order) -> None:
        """Give the next operation its number, unless it is posted in a callback."""
        if current() is not None:
            return
        if order is Order.COLLECTIVE:
            self._collectives += 1
        else:
            self._messages += 1

    def _number(self, order: Order) -> Number:
        """Return the number, or the identity, of the operation that this thread posted last."""
        callback = current()
        if callback is not None:
            return callback.posted
        if order is Order.COLLECTIVE:
            return self._collectives
        return self._collectives, self._messages

    def _post(
        self,
        operations: Sequence[Operation],
        buffers: HostBuffers | DeviceBuffers,
        results: Sequence[torch.Tensor],
        timeout: timedelta | None,
        blocking: bool,
        order: Order,
    ) -> dist.Work:
        posting = self._posting(operations)
        if self._staging is None:
            assert isinstance(buffers, HostBuffers)
            if blocking:
                posting(timeout, True)
                buffers.copy_back()
                return self._done
            return self._host_work(posting(timeout, False), buffers, results, order)

        def post() -> Transfer:
            return posting(timeout, False)

        if isinstance(buffers, HostBuffers):
            return self._host_work(self._staging.post(order, post), buffers, results, order)
        transfer = self._staging.post(order, post, buffers)
        return self._staged_work(self._staging.follow(buffers, transfer), results, order)

    def _posting(
        self, operations: Sequence[Operation]
    ) -> Callable[[timedelta | None, bool], Transfer]:
        """Check operations; return the function that posts them, together as one Transfer."""
        prepared = [self._nic.prepare(each) for each in operations]

        def post(timeout: timedelta | None, blocking: bool) -> Transfer:
            if len(prepared) == 1:
                return prepared[0].post(timeout=timeout, blocking=blocking)
            transfer = AllOf([each.post(timeout=timeout) for each in prepared])
            if blocking:
                transfer.wait(timeout)
            return transfer

        return post

    def _host_work(
        self,
        transfer: Transfer,
        buffers: HostBuffers,
        results: Sequence[torch.Tensor],
        order: Order,
    ) -> dist.Work:
        if buffers.copies_back:
            transfer = Continuation(transfer, buffers.copy_back)
        return self._remember(TransferWork(transfer, results, buffers), self._number(order))

    def _staged_work(
        self, transfer: StagedTransfer, results: Sequence[torch.Tensor], order: Order
    ) -> dist.Work:
        return self._remember(StagedWork(transfer, results), self._number(order))

    def _remember(self, work: TransferWork, number: Number) -> dist.Work:
        work.callbacks = self._callbacks
        work.number = number
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _limit(self, opts: Any, timeout: timedelta | None) -> timedelta | None:
        """Return the timeout of one operation; None means the timeout of the engine's group.

        Raises UsageError unless the timeout is positive or not set.
        """
        if timeout is None and opts is not None:
            timeout = opts.timeout
        return self._timeout if timeout is None or timeout == UNSET else time_limit(timeout)

    def _start_coalescing(self, device: torch.device) -> None:
        """Collect the Works of the following calls until `_end_coalescing` merges the Works."""
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        works, self._coalesced = self._coalesced or [], None
        found = [work for work in works if isinstance(work, TransferWork)]
        return found[0] if len(found) == 1 else CoalescedWork(found)
