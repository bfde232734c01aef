"""A Nic and its Groups that record each operation before the engine gets the operation."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, Unpack

from slackline.backend._torch import Store as TorchStore
from slackline.backend.flight._entries import Entry, GroupRecord, Sizes
from slackline.backend.flight._recorder import FlightRecorder
from slackline.env import Environment
from slackline.errors import MismatchError, SlacklineError, UsageError
from slackline.nic import (
    CompletionQueue,
    Group,
    MessagePosting,
    Nic,
    Posting,
    Store,
    TimedTransfer,
    Transfer,
    clean_up,
)
from slackline.wire import DType, ReduceOp

__all__ = ["RecordedGroup", "RecordedNic", "recorded_nic"]

Handle = TypeVar("Handle", bound=Transfer)


def recorded_nic(nic: Nic, environment: Environment) -> Nic:
    """Return `nic` with a flight recorder, or `nic` itself if no variable asks for one."""
    folder, entries = environment.flight_recorder, environment.flight_recorder_entries
    if folder is None and entries is None:
        return nic
    return RecordedNic(nic, FlightRecorder(entries, folder))


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
    ) -> Group:
        group = self._nic.open_group(
            store, rank, size, timeout=timeout, opening=opening, members=members
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

    def close(self) -> None:
        """Look for failures for the last time, then close the engine."""
        self.recorder.close()
        self._nic.close()


class RecordedGroup:
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

    def all_reduce(
        self,
        source: int,
        target: int,
        count: int,
        dtype: DType,
        op: ReduceOp,
        **posting: Unpack[Posting],
    ) -> TimedTransfer:
        entry = self._enter("all_reduce", dtype, [[count]], [[count]], posting)
        call = self._group.all_reduce
        return self._post(entry, lambda: call(source, target, count, dtype, op, **posting))

    def reduce_scatter(
        self,
        sources: Sequence[int],
        counts: Sequence[int],
        target: int,
        dtype: DType,
        op: ReduceOp,
        **posting: Unpack[Posting],
    ) -> Transfer:
        kind, whole, part = self._parts("reduce_scatter", counts)
        entry = self._enter(kind, dtype, whole, part, posting)
        call = self._group.reduce_scatter
        return self._post(entry, lambda: call(sources, counts, target, dtype, op, **posting))

    def all_gather(
        self,
        source: int,
        targets: Sequence[int],
        counts: Sequence[int],
        dtype: DType,
        **posting: Unpack[Posting],
    ) -> Transfer:
        kind, whole, part = self._parts("all_gather", counts)
        entry = self._enter(kind, dtype, part, whole, posting)
        call = self._group.all_gather
        return self._post(entry, lambda: call(source, targets, counts, dtype, **posting))

    def broadcast(
        self, address: int, count: int, dtype: DType, root: int, **posting: Unpack[Posting]
    ) -> Transfer:
        entry = self._enter("broadcast", dtype, [[count]], [[count]], posting)
        call = self._group.broadcast
        return self._post(entry, lambda: call(address, count, dtype, root, **posting))

    def reduce(
        self,
        source: int,
        target: int,
        count: int,
        dtype: DType,
        op: ReduceOp,
        root: int,
        **posting: Unpack[Posting],
    ) -> Transfer:
        entry = self._enter("reduce", dtype, [[count]], [[count]], posting)
        call = self._group.reduce
        return self._post(entry, lambda: call(source, target, count, dtype, op, root, **posting))

    def gather(
        self,
        source: int,
        targets: Sequence[int],
        counts: Sequence[int],
        dtype: DType,
        root: int,
        **posting: Unpack[Posting],
    ) -> Transfer:
        _, whole, part = self._parts("gather", counts)
        entry = self._enter("gather", dtype, part, whole, posting)
        call = self._group.gather
        return self._post(entry, lambda: call(source, targets, counts, dtype, root, **posting))

    def scatter(
        self,
        sources: Sequence[int],
        target: int,
        counts: Sequence[int],
        dtype: DType,
        root: int,
        **posting: Unpack[Posting],
    ) -> Transfer:
        _, whole, part = self._parts("scatter", counts)
        entry = self._enter("scatter", dtype, whole, part, posting)
        call = self._group.scatter
        return self._post(entry, lambda: call(sources, target, counts, dtype, root, **posting))

    def all_to_all(
        self,
        sources: Sequence[int],
        source_counts: Sequence[int],
        targets: Sequence[int],
        target_counts: Sequence[int],
        dtype: DType,
        **posting: Unpack[Posting],
    ) -> Transfer:
        given, got = [[sum(source_counts)]], [[sum(target_counts)]]
        entry = self._enter("all_to_all", dtype, given, got, posting)
        call = self._group.all_to_all
        return self._post(
            entry, lambda: call(sources, source_counts, targets, target_counts, dtype, **posting)
        )

    def barrier(self, **posting: Unpack[Posting]) -> Transfer:
        entry = self._enter("barrier", None, [], [], posting)
        return self._post(entry, lambda: self._group.barrier(**posting))

    def send(
        self,
        address: int,
        count: int,
        dtype: DType,
        peer: int,
        tag: int,
        **posting: Unpack[MessagePosting],
    ) -> Transfer:
        entry = self._enter("send", dtype, [[count]], [], {**posting, "tag": tag}, peer)
        call = self._group.send
        return self._post(entry, lambda: call(address, count, dtype, peer, tag, **posting))

    def recv(
        self,
        address: int,
        count: int,
        dtype: DType,
        peer: int | None,
        tag: int,
        **posting: Unpack[MessagePosting],
    ) -> Transfer:
        other = -1 if peer is None else peer
        entry = self._enter("recv", dtype, [], [[count]], {**posting, "tag": tag}, other)
        call = self._group.recv
        return self._post(entry, lambda: call(address, count, dtype, peer, tag, **posting))

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

    def _parts(self, kind: str, counts: Sequence[int]) -> tuple[str, Sizes, Sizes]:
        """Return the kind of operation, and the sizes of the whole and of one rank's part.

        Parts of different sizes have the sizes of all ranks' parts in both places, since torch's
        analyser expects equal sizes on all ranks; the kind then ends in "_v", as NCCL's does.
        """
        if len(set(counts)) > 1:
            return f"{kind}_v", [list(counts)], [list(counts)]
        return kind, [[sum(counts)]], [[counts[0] if counts else 0]]

    def _enter(
        self,
        kind: str,
        dtype: DType | None,
        inputs: Sizes,
        outputs: Sizes,
        posting: Posting,
        peer: int = -1,
    ) -> Entry:
        limit = posting.get("timeout")
        return self._recorder.enter(
            self.record,
            kind,
            peer=peer,
            tag=posting.get("tag"),
            dtype=dtype,
            inputs=inputs,
            outputs=outputs,
            timeout=self.timeout if limit is None else limit,
        )

    def _post(self, entry: Entry, post: Callable[[], Handle]) -> Handle:
        try:
            transfer = post()
        except SlacklineError as error:
            if isinstance(error, UsageError) and not isinstance(error, MismatchError):
                self._recorder.withdraw(entry)  # The engine has refused the call.
            else:
                self._recorder.failed(entry, error)
            raise
        entry.posted(transfer)
        return transfer
