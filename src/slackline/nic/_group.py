"""A group of ranks on the native engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Unpack

import slackline._native as _native
from slackline.errors import ClosedError, UsageError
from slackline.health import Judgement
from slackline.nic._calibration import measure
from slackline.nic._checks import (
    check_peer,
    check_reduction,
    check_root,
    check_tag,
    sum_counts,
)
from slackline.nic._chunks import Chunk, all_to_all, each_to_own, own_to_each
from slackline.nic._completion_queue import NativeCompletionQueue
from slackline.nic._failures import to_error
from slackline.nic._interface import Transfer
from slackline.nic._plans import STAR, PlanBook, Selected
from slackline.nic._posting import MessagePosting, Posting, limit_ns, nanoseconds, tag_of
from slackline.nic._star import Star
from slackline.nic._tags import TagAllocator
from slackline.nic._transfer import DONE, Completions, NativeTransfer
from slackline.plan.collective import Collective
from slackline.wire import DType, ReduceOp

__all__ = ["NativeGroup"]

_CACHED_SHAPES = 4096
Run = Callable[..., _native.Job | None]


class NativeGroup:
    """A group on the native engine; slackline.nic.Group states the contract of every method."""

    def __init__(
        self,
        engine: _native.Engine,
        native: _native.Group,
        book: PlanBook,
        completions: Completions,
        *,
        timeout: timedelta,
        on_close: Callable[[NativeGroup], None],
        lost: Callable[[], frozenset[int]],
        health: Callable[[], list[Judgement]],
        counters: Callable[[], Mapping[str, int]],
    ) -> None:
        self._engine = engine
        self._native = native
        self._book = book
        self._completions = completions
        self.timeout, self._timeout_ns = timeout, nanoseconds(timeout)
        self._on_close = on_close
        self.lost, self.health, self.counters = lost, health, counters
        self._closed = False
        self._run = native.run
        self._star: Star | None = None
        self._all_reduces: dict[tuple[int, int, int], tuple[Run, _native.Program, int]] = {}
        self.rank, self.size = native.rank, native.size
        self.tag_allocator = TagAllocator()
        self.rank_ordered = book.order == "rank"

    @property
    def all_shared(self) -> bool:
        """Whether every rank is on this host and reached through shared memory."""
        return self._native.all_shared

    def plan_for(
        self, nbytes: int, dtype: DType = DType.FLOAT32, op: ReduceOp = ReduceOp.SUM
    ) -> Selected:
        """Return the plan that an all_reduce of `nbytes` runs, with the reason for the choice."""
        return self._book.all_reduce(nbytes, dtype, op)

    def agree(self, address: int, count: int) -> None:
        """Replace each of `count` 64-bit integers by its maximum over all ranks; blocks."""
        self._timed("direct", address, count * DType.INT64.itemsize, DType.INT64)

    def use(self, star: Star) -> None:
        """Allow all_reduces to go through the aggregator of `star` from now on."""
        self._star = star
        self._book.reach_star(star.most_bytes)

    def calibrate(self) -> None:
        """Time the candidate plans, to choose among them later; each rank must call once."""
        if self.size > 1:
            self._book.learn(measure(self._book.candidates(), self._timed))
            self._all_reduces.clear()

    def _timed(self, name: str, address: int, nbytes: int, dtype: DType = DType.FLOAT32) -> None:
        """Run one blocking all_reduce to the maximum, in place, by the plan called `name`."""
        program, run = self._book.program(Collective.ALL_REDUCE, name), self._runner(name)
        count, op, limit = nbytes // dtype.itemsize, ReduceOp.MAX, self._timeout_ns
        job = run(program, address, address, count, dtype, op, nbytes, -1, 0, limit, True)
        if job is not None:
            self._transfer(job, True)

    def _runner(self, name: str) -> Run:
        """Return the function that posts all_reduces of the plan called `name`."""
        return self._run if self._star is None or name != STAR else self._star.run

    def all_reduce(
        self,
        source: int,
        target: int,
        count: int,
        dtype: DType,
        op: ReduceOp,
        *,
        tag: int | None = None,
        priority: int = 0,
        timeout: timedelta | None = None,
        blocking: bool = False,
    ) -> Transfer:
        known = self._all_reduces.get((count, dtype, op))
        if known is None:
            known = self._prepare_all_reduce(count, dtype, op)
        job = known[0](
            known[1],
            source,
            target,
            count,
            dtype,
            op,
            known[2],
            -1 if tag is None else check_tag(self.rank, tag),
            priority,
            self._timeout_ns if timeout is None else nanoseconds(timeout),
            blocking,
        )
        return DONE if job is None else self._transfer(job, blocking)

    def _prepare_all_reduce(
        self, count: int, dtype: DType, op: ReduceOp
    ) -> tuple[Run, _native.Program, int]:
        self._require_open()
        total = check_reduction(self.rank, count, dtype, op)
        if len(self._all_reduces) >= _CACHED_SHAPES:
            self._all_reduces.clear()
        chosen = self._book.all_reduce(total, dtype, op)
        known = self._runner(chosen.name), chosen.program, total
        self._all_reduces[count, dtype, op] = known
        return known

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

    def completion_queue(self) -> NativeCompletionQueue:
        return NativeCompletionQueue(self._engine, self._completions.pending_queues)

    def allocate(self, nbytes: int) -> int:
        address = self._engine.allocate(nbytes)
        if address == 0:
            raise UsageError(
                f"the arena of {self._engine.arena_bytes} bytes has no room for {nbytes} more"
            )
        return address

    def free(self, address: int) -> None:
        if not self._engine.free(address):
            raise UsageError(f"{address:#x} is not the start of registered memory")

    def close(self, timeout: timedelta | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        self._all_reduces.clear()
        limit = self._timeout_ns if timeout is None else nanoseconds(timeout)
        if self._star is not None:
            self._star.close(limit)
        self._native.close(limit)
        self._on_close(self)

    def abort(self, reason: str) -> None:
        if not self._closed:
            self._native.abort(reason)
            if self._star is not None:
                self._star.abort(reason)

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
        check_peer(self.rank, self.size, peer)
        blocking = posting.get("blocking", False)
        job = self._native.message(
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
        return DONE if job is None else self._transfer(job, blocking)

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
        self._require_open()
        check_root(self.rank, self.size, root)
        total = count * dtype.itemsize
        blocking = posting.get("blocking", False)
        job = self._run(
            self._book.select(collective, total, dtype, root).program,
            source,
            target,
            count,
            dtype,
            op,
            total,
            tag_of(posting, self.rank),
            posting.get("priority", 0),
            limit_ns(posting, self._timeout_ns),
            blocking,
        )
        return DONE if job is None else self._transfer(job, blocking)

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
        self._require_open()
        check_root(self.rank, self.size, root)
        total = sum(counts) * dtype.itemsize
        blocking = posting.get("blocking", False)
        job = self._native.run_chunks(
            self._book.select(collective, total, dtype, root).program,
            chunks,
            dtype,
            op,
            total,
            tag_of(posting, self.rank),
            posting.get("priority", 0),
            limit_ns(posting, self._timeout_ns),
            blocking,
        )
        return DONE if job is None else self._transfer(job, blocking)

    def _transfer(self, job: _native.Job, blocking: bool) -> NativeTransfer:
        transfer = NativeTransfer(job, self._completions)
        if blocking and (failure := job.failure()) is not None:
            raise to_error(failure)
        return transfer

    def _sum(self, name: str, counts: Sequence[int]) -> int:
        return sum_counts(self.rank, self.size, name, counts)

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("the group is closed", rank=self.rank)
