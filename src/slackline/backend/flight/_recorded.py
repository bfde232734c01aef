"""A Nic and its Groups that record each operation before the engine gets the operation."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from slackline.backend._torch import Store as TorchStore
from slackline.backend.flight._entries import Entry, GroupRecord, Sizes
from slackline.backend.flight._recorder import FlightRecorder
from slackline.env import Environment
from slackline.errors import MismatchError, SlacklineError, UsageError
from slackline.nic import (
    CompletionQueue,
    Group,
    Introduction,
    Kind,
    Nic,
    Operation,
    Posts,
    Prepared,
    Store,
    TimedTransfer,
    clean_up,
)

__all__ = ["RecordedGroup", "RecordedNic", "recorded_nic"]


def recorded_nic(nic: Nic, environment: Environment) -> Nic:
    """Return `nic` with the flight recorder for which the environment's variables ask."""
    recorder = FlightRecorder(environment.flight_recorder_entries, environment.flight_recorder)
    return RecordedNic(nic, recorder)


class RecordedNic:
    """A Nic whose groups record their operations; slackline.nic.Nic states the contract."""

    def __init__(self, nic: Nic, recorder: FlightRecorder) -> None:
        self._nic = nic
        self.recorder = recorder

    def open_group(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        timeout: timedelta,
        opening: timedelta | None = None,
        members: Sequence[int] | None = None,
        anew: bool = True,
        introduction: Introduction | None = None,
    ) -> Group:
        group = self._nic.open_group(
            store,
            rank,
            size,
            timeout=timeout,
            opening=opening,
            members=members,
            anew=anew,
            introduction=introduction,
        )
        names = tuple(range(size) if members is None else members)
        record = GroupRecord(rank, names)
        shared = store if isinstance(store, TorchStore) else None
        try:
            self.recorder.follow(record, group.lost, shared)
        except BaseException as error:
            clean_up(error, partial(group.close, timedelta()))
            raise
        return RecordedGroup(group, record, self.recorder)

    def stepped(self, optimizer: int) -> None:
        self._nic.stepped(optimizer)

    def close(self) -> None:
        """Look for failures for the last time, then close the engine."""
        self.recorder.close()
        self._nic.close()


class RecordedGroup(Posts):
    """A Group that records its operations; slackline.nic.Group states the contract."""

    def __init__(self, group: Group, record: GroupRecord, recorder: FlightRecorder) -> None:
        self._group = group
        self._recorder = recorder
        self.record = record
        self.rank, self.size = group.rank, group.size
        self.timeout = group.timeout
        self.tag_allocator = group.tag_allocator
        self.rank_ordered = group.rank_ordered

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the engine's group that slackline.nic.Group does not state."""
        return getattr(self._group, name)

    def prepare(self, operation: Operation, /) -> Prepared:
        return _RecordedOperation(self, operation, self._group.prepare(operation))

    def completion_queue(self) -> CompletionQueue:
        return self._group.completion_queue()

    def allocate(self, nbytes: int) -> int:
        return self._group.allocate(nbytes)

    def free(self, address: int) -> None:
        self._group.free(address)

    def counters(self) -> Mapping[str, int]:
        return self._group.counters()

    def lost(self) -> frozenset[int]:
        return self._group.lost()

    def close(self, timeout: timedelta | None = None) -> None:
        self._group.close(timeout)

    def abort(self, reason: str) -> None:
        self._group.abort(reason)

    def enter(self, operation: Operation, limit: timedelta | None) -> Entry:
        """Record an operation that is about to be posted."""
        name, inputs, outputs = _sizes(operation)
        message = operation.kind in (Kind.SEND, Kind.RECV)
        return self._recorder.enter(
            self.record,
            name,
            peer=operation.peer if message and operation.peer is not None else -1,
            tag=operation.tag,
            dtype=None if operation.kind is Kind.BARRIER else operation.dtype,
            inputs=inputs,
            outputs=outputs,
            timeout=self.timeout if limit is None else limit,
        )

    def refused(self, entry: Entry, error: SlacklineError) -> None:
        """Record that the call that posted an operation has raised `error`."""
        if isinstance(error, UsageError) and not isinstance(error, MismatchError):
            self._recorder.withdraw(entry)  # The engine has refused the call.
        else:
            self._recorder.failed(entry, error)


class _RecordedOperation(Prepared):
    """A prepared operation of which each posting is recorded."""

    def __init__(self, group: RecordedGroup, operation: Operation, prepared: Prepared) -> None:
        self._group, self._operation, self._prepared = group, operation, prepared

    def post(
        self,
        *,
        at: int | None = None,
        priority: int | None = None,
        timeout: timedelta | None = None,
        blocking: bool = False,
    ) -> TimedTransfer:
        entry = self._group.enter(self._operation, timeout)
        try:
            transfer = self._prepared.post(
                at=at, priority=priority, timeout=timeout, blocking=blocking
            )
        except SlacklineError as error:
            self._group.refused(entry, error)
            raise
        entry.posted(transfer)
        return transfer


def _sizes(operation: Operation) -> tuple[str, Sizes, Sizes]:
    """Return the name of an operation for torch's analyser, and the sizes read and written.

    Parts of different sizes have the sizes of all ranks' parts in both places, since the analyser
    expects equal sizes on all ranks; the name then ends in "_v", as NCCL's does.
    """
    kind, counts = operation.kind, operation.counts
    name, every = str(kind), [list(counts)]
    if kind is Kind.BARRIER:
        return name, [], []
    if kind is Kind.SEND:
        return name, every, []
    if kind is Kind.RECV:
        return name, [], every
    if kind in (Kind.ALL_REDUCE, Kind.BROADCAST, Kind.REDUCE):
        return name, every, every
    whole: Sizes = [[operation.elements]]
    if kind is Kind.ALL_TO_ALL:
        return name, whole, [[sum(operation.target_counts)]]
    if len(set(counts)) > 1:
        return name if operation.peer is not None else f"{name}_v", every, every
    part: Sizes = [[counts[0] if counts else 0]]
    gathers = kind in (Kind.ALL_GATHER, Kind.GATHER)
    return (name, part, whole) if gathers else (name, whole, part)
