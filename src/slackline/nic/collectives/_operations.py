"""The operations of a group on the native engine, all but all_reduce."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack

import slackline._native as _native
from slackline.errors import ClosedError, UsageError
from slackline.nic._failures import to_error
from slackline.nic._interface import MessagePosting, Posting, TimedTransfer, Transfer
from slackline.nic.collectives._checks import (
    check_peer,
    check_reduction,
    check_root,
    check_tag,
    sum_counts,
)
from slackline.nic.collectives._chunks import Chunk, all_to_all, each_to_own, own_to_each
from slackline.nic.collectives._plans import DIRECT, MESH, PlanBook
from slackline.nic.collectives._posting import check_keywords, limit_ns, tag_of
from slackline.nic.collectives._transfer import DONE, Completions, NativeTransfer
from slackline.plan.collective import Collective
from slackline.wire import DType, ReduceOp

__all__ = ["Operations"]

_EARLY = 16
"""The number of collectives of one kind with one tag, or without a tag, that a large group runs
over the links that it is opened with. Every rank counts alike, so all choose the same plan."""
_PREPARED = 8
"""The number of such collectives after which the group begins to connect the links of the later
plan, if that plan needs a link to every rank."""


class Operations:
    """Collectives and messages of a group; slackline.nic.Group states the contract of each."""

    def __init__(
        self,
        native: _native.Group,
        book: PlanBook,
        completions: Completions,
        timeout_ns: int,
        prepare: Callable[[], None],
    ) -> None:
        """Prepare to post on `native` by the plans of `book`; `timeout_ns` is the default timeout.

        `prepare` begins to make all links of the group.
        """
        self._native = native
        self._book = book
        self._completions = completions
        self._timeout_ns = timeout_ns
        self._prepare = prepare
        self._posted: dict[tuple[Collective, int | None], int] = {}
        self._closed = False
        self.rank = native.rank
        self.size = native.size

    def reduce_scatter(
        self,
        sources: Sequence[int],
        counts: Sequence[int],
        target: int,
        dtype: DType,
        op: ReduceOp,
        **posting: Unpack[Posting],
    ) -> Transfer:
        check_reduction(self.rank, self._sum("counts", counts), dtype, op)
        chunks = each_to_own(self.rank, sources, counts, target)
        return self._chunks(Collective.REDUCE_SCATTER, chunks, counts, dtype, op, None, posting)

    def all_gather(
        self,
        source: int,
        targets: Sequence[int],
        counts: Sequence[int],
        dtype: DType,
        **posting: Unpack[Posting],
    ) -> Transfer:
        self._sum("counts", counts)
        chunks = own_to_each(self.rank, source, targets, counts)
        return self._chunks(
            Collective.ALL_GATHER, chunks, counts, dtype, ReduceOp.NONE, None, posting
        )

    def broadcast(
        self, address: int, count: int, dtype: DType, root: int, **posting: Unpack[Posting]
    ) -> Transfer:
        return self._buffer(
            Collective.BROADCAST, address, address, count, dtype, ReduceOp.NONE, root, posting
        )

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
        check_reduction(self.rank, count, dtype, op)
        where = target if self.rank == root else 0
        return self._buffer(Collective.REDUCE, source, where, count, dtype, op, root, posting)

    def gather(
        self,
        source: int,
        targets: Sequence[int],
        counts: Sequence[int],
        dtype: DType,
        root: int,
        **posting: Unpack[Posting],
    ) -> Transfer:
        self._sum("counts", counts)
        at = targets if self.rank == root else [0] * self.size
        chunks = own_to_each(self.rank, source, at, counts)
        return self._chunks(Collective.GATHER, chunks, counts, dtype, ReduceOp.NONE, root, posting)

    def scatter(
        self,
        sources: Sequence[int],
        target: int,
        counts: Sequence[int],
        dtype: DType,
        root: int,
        **posting: Unpack[Posting],
    ) -> Transfer:
        self._sum("counts", counts)
        at = sources if self.rank == root else [0] * self.size
        chunks = each_to_own(self.rank, at, counts, target)
        return self._chunks(Collective.SCATTER, chunks, counts, dtype, ReduceOp.NONE, root, posting)

    def all_to_all(
        self,
        sources: Sequence[int],
        source_counts: Sequence[int],
        targets: Sequence[int],
        target_counts: Sequence[int],
        dtype: DType,
        **posting: Unpack[Posting],
    ) -> Transfer:
        me = self.rank
        self._sum("source_counts", source_counts)
        self._sum("target_counts", target_counts)
        if source_counts[me] != target_counts[me]:
            raise UsageError(
                f"rank {me} sends itself {source_counts[me]} elements "
                f"but expects {target_counts[me]}",
                rank=me,
            )
        chunks = all_to_all(me, sources, source_counts, targets, target_counts)
        return self._chunks(
            Collective.ALL_TO_ALL, chunks, source_counts, dtype, ReduceOp.NONE, None, posting
        )

    def barrier(self, **posting: Unpack[Posting]) -> Transfer:
        return self._buffer(Collective.BARRIER, 0, 0, 0, DType.UINT8, ReduceOp.NONE, None, posting)

    def send(
        self,
        address: int,
        count: int,
        dtype: DType,
        peer: int,
        tag: int,
        **posting: Unpack[MessagePosting],
    ) -> Transfer:
        return self._message(False, address, count, dtype, peer, tag, posting)

    def recv(
        self,
        address: int,
        count: int,
        dtype: DType,
        peer: int | None,
        tag: int,
        **posting: Unpack[MessagePosting],
    ) -> Transfer:
        return self._message(True, address, count, dtype, peer, tag, posting)

    def _message(
        self,
        receives: bool,
        address: int,
        count: int,
        dtype: DType,
        peer: int | None,
        tag: int,
        posting: MessagePosting,
    ) -> Transfer:
        self._require_open()
        check_keywords(posting, MessagePosting, self.rank)
        check_peer(self.rank, self.size, peer)
        blocking = posting.get("blocking", False)
        request = self._native.message(
            receives,
            address,
            count,
            dtype,
            count * dtype.itemsize,
            -1 if peer is None else peer,
            check_tag(self.rank, tag),
            posting.get("priority", 0),
            limit_ns(posting, self._timeout_ns),
            blocking,
        )
        return DONE if request is None else self._transfer(request, blocking)

    def _buffer(
        self,
        collective: Collective,
        source: int,
        target: int,
        count: int,
        dtype: DType,
        op: ReduceOp,
        root: int | None,
        posting: Posting,
    ) -> Transfer:
        data = (source, target, count)
        return self._post(self._native.run, data, collective, count, dtype, op, root, posting)

    def _chunks(
        self,
        collective: Collective,
        chunks: list[Chunk],
        counts: Sequence[int],
        dtype: DType,
        op: ReduceOp,
        root: int | None,
        posting: Posting,
    ) -> Transfer:
        run, data = self._native.run_chunks, (chunks,)
        return self._post(run, data, collective, sum(counts), dtype, op, root, posting)

    def _post(
        self,
        run: Callable[..., _native.Request | TimedTransfer | None],
        data: tuple[object, ...],
        collective: Collective,
        count: int,
        dtype: DType,
        op: ReduceOp,
        root: int | None,
        posting: Posting,
    ) -> Transfer:
        """Post a collective of `count` elements in all; `run` takes its program, then `data`."""
        self._require_open()
        check_keywords(posting, Posting, self.rank)
        check_root(self.rank, self.size, root)
        total = count * dtype.itemsize
        blocking = posting.get("blocking", False)
        tag = posting.get("tag")
        early = self._is_early(collective, tag)
        request = run(
            self._book.select(collective, total, dtype, root, early=early).program,
            *data,
            dtype,
            op,
            total,
            tag_of(posting, self.rank),
            posting.get("priority", 0),
            limit_ns(posting, self._timeout_ns),
            blocking,
        )
        if early:
            self._count(collective, tag, total, dtype, root)
        return DONE if request is None else self._transfer(request, blocking)

    def _is_early(self, collective: Collective, tag: int | None) -> bool:
        """Return whether the next collective of this kind and tag uses only the first links."""
        later = self._book.connects_later
        return later and self._posted.get((collective, tag), 0) < _EARLY

    def _count(
        self,
        collective: Collective,
        tag: int | None,
        nbytes: int,
        dtype: DType,
        root: int | None = None,
    ) -> None:
        """Count a posted collective that used only the group's first links."""
        number = self._posted[collective, tag] = self._posted.get((collective, tag), 0) + 1
        if number == _PREPARED:
            later = self._book.select(collective, nbytes, dtype, root).name
            if root is None and later in (DIRECT, MESH):
                self._prepare()

    def _transfer(self, request: _native.Request | TimedTransfer, blocking: bool) -> TimedTransfer:
        if not isinstance(request, _native.Request):
            return request
        transfer = NativeTransfer(request, self._completions)
        if blocking and (failure := request.failure()) is not None:
            raise to_error(failure)
        return transfer

    def _sum(self, name: str, counts: Sequence[int]) -> int:
        return sum_counts(self.rank, self.size, name, counts)

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("the group is closed", rank=self.rank)
