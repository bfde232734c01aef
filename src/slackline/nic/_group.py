"""A group of ranks on the native engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from slackline import _native, errors
from slackline.nic._failures import to_error
from slackline.nic._interface import Transfer
from slackline.nic._plans import PlanBook, Selected
from slackline.nic._transfer import DONE, Completions, NativeTransfer
from slackline.plan.collective import Collective
from slackline.wire import DType, ReduceOp

__all__ = ["NativeGroup"]

_MAX_TAG = 1 << 24
_CACHED_SHAPES = 4096
_FLOATS = (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16)
_BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)


class NativeGroup:
    """See slackline.nic.Group for the contract of every method."""

    def __init__(
        self,
        engine: _native.Engine,
        native: _native.Group,
        book: PlanBook,
        completions: Completions,
        *,
        timeout: timedelta,
        segment_bytes: int,
        on_close: Callable[[NativeGroup], None],
    ) -> None:
        self._engine = engine
        self._native = native
        self._book = book
        self._completions = completions
        self._timeout_ns = _nanoseconds(timeout)
        self._segment_bytes = segment_bytes
        self._on_close = on_close
        self._closed = False
        self._run = native.run
        self._all_reduces: dict[tuple[int, int, int], tuple[_native.Program, int, bool]] = {}
        self.rank = native.rank
        self.size = native.size

    @property
    def all_shared(self) -> bool:
        """True when every rank is on this host and reached through shared memory."""
        return self._native.all_shared

    def plan_for(
        self, nbytes: int, dtype: DType = DType.FLOAT32, op: ReduceOp = ReduceOp.SUM
    ) -> Selected:
        """The plan that an all_reduce of `nbytes` runs, and why."""
        return self._book.select(Collective.ALL_REDUCE, nbytes, dtype, op)

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
        job = self._run(
            known[0],
            source,
            target,
            count,
            dtype,
            op,
            known[1],
            -1 if tag is None else self._tag(tag),
            priority,
            self._timeout_ns if timeout is None else _nanoseconds(timeout),
            known[2],
            self._segment_bytes,
            blocking,
        )
        return DONE if job is None else self._transfer(job, blocking)

    def _prepare_all_reduce(
        self, count: int, dtype: DType, op: ReduceOp
    ) -> tuple[_native.Program, int, bool]:
        total = self._check(count, dtype, op)
        selected = self._book.select(Collective.ALL_REDUCE, total, dtype, op)
        if len(self._all_reduces) >= _CACHED_SHAPES:
            self._all_reduces.clear()
        known = selected.program, total, self._book.order == "rank"
        self._all_reduces[count, dtype, op] = known
        return known

    def reduce_scatter(
        self,
        sources: Sequence[int],
        counts: Sequence[int],
        target: int,
        dtype: DType,
        op: ReduceOp,
        *,
        tag: int | None = None,
        priority: int = 0,
        timeout: timedelta | None = None,
        blocking: bool = False,
    ) -> Transfer:
        total = self._check(self._sum("counts", counts), dtype, op)
        chunks = [
            (i, address, target if i == self.rank else 0, count)
            for i, (address, count) in enumerate(zip(sources, counts, strict=True))
        ]
        return self._post(
            Collective.REDUCE_SCATTER,
            chunks,
            dtype,
            op,
            total,
            None,
            tag,
            priority,
            timeout,
            blocking,
        )

    def all_gather(
        self,
        source: int,
        targets: Sequence[int],
        counts: Sequence[int],
        dtype: DType,
        *,
        tag: int | None = None,
        priority: int = 0,
        timeout: timedelta | None = None,
        blocking: bool = False,
    ) -> Transfer:
        total = self._sum("counts", counts) * dtype.itemsize
        chunks = [
            (i, source if i == self.rank else 0, address, count)
            for i, (address, count) in enumerate(zip(targets, counts, strict=True))
        ]
        return self._post(
            Collective.ALL_GATHER,
            chunks,
            dtype,
            ReduceOp.NONE,
            total,
            None,
            tag,
            priority,
            timeout,
            blocking,
        )

    def broadcast(
        self,
        address: int,
        count: int,
        dtype: DType,
        root: int,
        *,
        tag: int | None = None,
        priority: int = 0,
        timeout: timedelta | None = None,
        blocking: bool = False,
    ) -> Transfer:
        return self._post_split(
            Collective.BROADCAST,
            address,
            address,
            count,
            dtype,
            ReduceOp.NONE,
            root,
            tag,
            priority,
            timeout,
            blocking,
        )

    def reduce(
        self,
        source: int,
        target: int,
        count: int,
        dtype: DType,
        op: ReduceOp,
        root: int,
        *,
        tag: int | None = None,
        priority: int = 0,
        timeout: timedelta | None = None,
        blocking: bool = False,
    ) -> Transfer:
        self._check(count, dtype, op)
        where = target if self.rank == root else 0
        return self._post_split(
            Collective.REDUCE,
            source,
            where,
            count,
            dtype,
            op,
            root,
            tag,
            priority,
            timeout,
            blocking,
        )

    def gather(
        self,
        source: int,
        targets: Sequence[int],
        counts: Sequence[int],
        dtype: DType,
        root: int,
        *,
        tag: int | None = None,
        priority: int = 0,
        timeout: timedelta | None = None,
        blocking: bool = False,
    ) -> Transfer:
        total = self._sum("counts", counts) * dtype.itemsize
        at = targets if self.rank == root else [0] * self.size
        chunks = [
            (i, source if i == self.rank else 0, address, count)
            for i, (address, count) in enumerate(zip(at, counts, strict=True))
        ]
        return self._post(
            Collective.GATHER,
            chunks,
            dtype,
            ReduceOp.NONE,
            total,
            root,
            tag,
            priority,
            timeout,
            blocking,
        )

    def scatter(
        self,
        sources: Sequence[int],
        target: int,
        counts: Sequence[int],
        dtype: DType,
        root: int,
        *,
        tag: int | None = None,
        priority: int = 0,
        timeout: timedelta | None = None,
        blocking: bool = False,
    ) -> Transfer:
        total = self._sum("counts", counts) * dtype.itemsize
        at = sources if self.rank == root else [0] * self.size
        chunks = [
            (i, address, target if i == self.rank else 0, count)
            for i, (address, count) in enumerate(zip(at, counts, strict=True))
        ]
        return self._post(
            Collective.SCATTER,
            chunks,
            dtype,
            ReduceOp.NONE,
            total,
            root,
            tag,
            priority,
            timeout,
            blocking,
        )

    def all_to_all(
        self,
        sources: Sequence[int],
        source_counts: Sequence[int],
        targets: Sequence[int],
        target_counts: Sequence[int],
        dtype: DType,
        *,
        tag: int | None = None,
        priority: int = 0,
        timeout: timedelta | None = None,
        blocking: bool = False,
    ) -> Transfer:
        n, me = self.size, self.rank
        total = self._sum("source_counts", source_counts) * dtype.itemsize
        self._sum("target_counts", target_counts)
        if source_counts[me] != target_counts[me]:
            raise errors.UsageError(
                f"rank {me} sends itself {source_counts[me]} elements "
                f"but expects {target_counts[me]}"
            )
        chunks = [
            (me * n + i, sources[i], targets[me] if i == me else 0, source_counts[i])
            for i in range(n)
        ]
        chunks += [(i * n + me, 0, targets[i], target_counts[i]) for i in range(n) if i != me]
        return self._post(
            Collective.ALL_TO_ALL,
            chunks,
            dtype,
            ReduceOp.NONE,
            total,
            None,
            tag,
            priority,
            timeout,
            blocking,
        )

    def barrier(
        self,
        *,
        tag: int | None = None,
        priority: int = 0,
        timeout: timedelta | None = None,
        blocking: bool = False,
    ) -> Transfer:
        return self._post_split(
            Collective.BARRIER,
            0,
            0,
            0,
            DType.UINT8,
            ReduceOp.NONE,
            None,
            tag,
            priority,
            timeout,
            blocking,
        )

    def send(
        self,
        address: int,
        count: int,
        dtype: DType,
        peer: int,
        tag: int,
        *,
        priority: int = 0,
        timeout: timedelta | None = None,
        blocking: bool = False,
    ) -> Transfer:
        return self._message(False, address, count, dtype, peer, tag, priority, timeout, blocking)

    def recv(
        self,
        address: int,
        count: int,
        dtype: DType,
        peer: int | None,
        tag: int,
        *,
        priority: int = 0,
        timeout: timedelta | None = None,
        blocking: bool = False,
    ) -> Transfer:
        return self._message(True, address, count, dtype, peer, tag, priority, timeout, blocking)

    def allocate(self, nbytes: int) -> int:
        address = self._engine.allocate(nbytes)
        if address == 0:
            raise errors.UsageError(
                f"the arena of {self._engine.arena_bytes} bytes has no room for {nbytes} more"
            )
        return address

    def free(self, address: int) -> None:
        if not self._engine.free(address):
            raise errors.UsageError(f"{address:#x} is not the start of registered memory")

    def counters(self) -> Mapping[str, int]:
        return self._engine.counters()

    def close(self, timeout: timedelta | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        self._all_reduces.clear()
        self._native.close(self._timeout_ns if timeout is None else _nanoseconds(timeout))
        self._on_close(self)

    def abort(self, reason: str) -> None:
        if not self._closed:
            self._native.abort(reason)

    def _message(
        self,
        receives: bool,
        address: int,
        count: int,
        dtype: DType,
        peer: int | None,
        tag: int,
        priority: int,
        timeout: timedelta | None,
        blocking: bool,
    ) -> Transfer:
        if peer is not None and (not 0 <= peer < self.size or peer == self.rank):
            raise errors.UsageError(
                f"peer must be another rank below {self.size}, not {peer}", rank=self.rank
            )
        self._require_open()
        job = self._native.message(
            receives,
            address,
            count,
            dtype,
            count * dtype.itemsize,
            -1 if peer is None else peer,
            self._tag(tag),
            priority,
            self._timeout_ns if timeout is None else _nanoseconds(timeout),
            blocking,
        )
        return DONE if job is None else self._transfer(job, blocking)

    def _post_split(
        self,
        collective: Collective,
        source: int,
        target: int,
        count: int,
        dtype: DType,
        op: ReduceOp,
        root: int | None,
        tag: int | None,
        priority: int,
        timeout: timedelta | None,
        blocking: bool,
    ) -> Transfer:
        self._require_root(root)
        total = count * dtype.itemsize
        selected = self._book.select(collective, total, dtype, op, root)
        self._require_open()
        job = self._run(
            selected.program,
            source,
            target,
            count,
            dtype,
            op,
            total,
            -1 if tag is None else self._tag(tag),
            priority,
            self._timeout_ns if timeout is None else _nanoseconds(timeout),
            self._book.order == "rank",
            self._segment_bytes,
            blocking,
        )
        return DONE if job is None else self._transfer(job, blocking)

    def _post(
        self,
        collective: Collective,
        chunks: list[tuple[int, int, int, int]],
        dtype: DType,
        op: ReduceOp,
        total: int,
        root: int | None,
        tag: int | None,
        priority: int,
        timeout: timedelta | None,
        blocking: bool,
    ) -> Transfer:
        self._require_root(root)
        selected = self._book.select(collective, total, dtype, op, root)
        self._require_open()
        job = self._native.run_chunks(
            selected.program,
            chunks,
            dtype,
            op,
            total,
            -1 if tag is None else self._tag(tag),
            priority,
            self._timeout_ns if timeout is None else _nanoseconds(timeout),
            self._book.order == "rank",
            self._segment_bytes,
            blocking,
        )
        return DONE if job is None else self._transfer(job, blocking)

    def _transfer(self, job: _native.Job, blocking: bool) -> NativeTransfer:
        transfer = NativeTransfer(job, self._completions)
        if blocking and (failure := job.failure()) is not None:
            raise to_error(failure)
        return transfer

    def _check(self, count: int, dtype: DType, op: ReduceOp) -> int:
        """Bytes of `count` elements; raises UsageError where the reduction is not defined."""
        self._require_open()
        if op is ReduceOp.NONE:
            raise errors.UsageError("a reduction needs an operation, not NONE", rank=self.rank)
        if dtype in _FLOATS and op in _BITWISE:
            raise errors.UsageError(
                f"{op.name} is not defined for {dtype.name.lower()}", rank=self.rank
            )
        if dtype is DType.BOOL and op is ReduceOp.AVG:
            raise errors.UsageError("AVG is not defined for bool", rank=self.rank)
        if count < 0:
            raise errors.UsageError(f"count must not be negative, not {count}", rank=self.rank)
        return count * dtype.itemsize

    def _sum(self, name: str, counts: Sequence[int]) -> int:
        if len(counts) != self.size:
            raise errors.UsageError(
                f"{name} must have an entry for each of {self.size} ranks, not {len(counts)}",
                rank=self.rank,
            )
        if min(counts) < 0:
            raise errors.UsageError(f"{name} must not be negative, not {min(counts)}")
        return sum(counts)

    def _tag(self, tag: int) -> int:
        if not 0 <= tag < _MAX_TAG:
            raise errors.UsageError(f"tag must be 0 to {_MAX_TAG - 1}, not {tag}", rank=self.rank)
        return tag

    def _require_root(self, root: int | None) -> None:
        if root is not None and not 0 <= root < self.size:
            raise errors.UsageError(
                f"root must be a rank below {self.size}, not {root}", rank=self.rank
            )

    def _require_open(self) -> None:
        if self._closed:
            raise errors.ClosedError("the group is closed", rank=self.rank)


def _nanoseconds(timeout: timedelta) -> int:
    return timeout // timedelta(microseconds=1) * 1000
