"""The operations of a group on the engine: their checks, the choice of their plans, their posting.

A prepared operation has its plan and its engine's arguments, and may be posted many times.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

import slackline._native as _native
from slackline.errors import ClosedError, UsageError
from slackline.nic._interface import Posts, Prepared, TimedTransfer
from slackline.nic._operation import Kind, Operation, in_callback
from slackline.nic._translation import nanoseconds, to_error
from slackline.nic.collectives._plans import DIRECT, MESH, PlanBook
from slackline.nic.collectives._programs import (
    Chunk,
    all_to_all,
    each_to_own,
    nodes_to_all,
    own_to_each,
)
from slackline.nic.collectives._transfer import DONE, Completions, NativeTransfer
from slackline.plan.collective import Collective
from slackline.units import count as counted
from slackline.wire import DType, ReduceOp

if TYPE_CHECKING:
    from slackline.plan.collective import Runs

__all__ = [
    "Operations",
    "PostBuffer",
    "PostParts",
    "Posted",
    "Poster",
    "PreparedBuffer",
    "PreparedParts",
    "PreparedRun",
    "check_collective_tag",
    "check_peer",
    "check_reduction",
    "check_root",
    "check_tag",
    "sum_counts",
]


Posted = _native.Request | TimedTransfer | None
"""What the engine returns for a posted operation; None if the operation is done already."""
PostBuffer = Callable[[int, int, int, int, bool], Posted]
"""Posts an operation: its source and target address, priority, limit in ns, blocking or not."""
PostParts = Callable[[int, bool], Posted]
"""Posts an operation with a limit in ns, blocking or not."""


class PreparedRun(Protocol):
    """An operation on one buffer, in the engine's form."""

    @property
    def post(self) -> PostBuffer: ...


class Binder(Protocol):
    """The group of a prepared operation, which chooses the operation's plan when it is posted."""

    @property
    def rank(self) -> int: ...

    @property
    def timeout_ns(self) -> int:
        """The timeout of operations that are posted without a timeout."""

    @property
    def version(self) -> int:
        """A number that changes when prepared operations must choose their plans again."""

    def bind_buffer(self, operation: Operation) -> tuple[PostBuffer, bool]:
        """Return what posts an operation on one buffer, and whether it lasts until `version`."""

    def bind_parts(self, operation: Operation) -> PostParts:
        """Return what posts an operation on parts, or a message."""

    def handle(self, request: _native.Request | TimedTransfer, blocking: bool) -> TimedTransfer:
        """Return the Transfer of a posted operation; if it was blocking, raise its error."""


class PreparedBuffer:
    """A prepared operation on one buffer; slackline.nic.Prepared states the contract."""

    __slots__ = (
        "__weakref__",
        "_group",
        "_post",
        "_priority",
        "_source",
        "_target",
        "_version",
        "_writes",
        "operation",
    )

    def __init__(self, group: Binder, operation: Operation) -> None:
        self._group = group
        self.operation = operation
        (self._source,) = operation.sources
        (self._target,) = operation.targets
        self._writes = operation.kind is not Kind.REDUCE or operation.peer == group.rank
        self._priority = operation.priority
        self._version = -1
        self._post: PostBuffer | None = None

    def post(
        self,
        *,
        at: int | None = None,
        priority: int | None = None,
        timeout: timedelta | None = None,
        blocking: bool = False,
    ) -> TimedTransfer:
        group = self._group
        chosen = self._version  # read before `_post`, which another thread may set meanwhile
        post = self._post
        if post is None or chosen != group.version:
            now = group.version
            post, lasts = group.bind_buffer(self.operation)
            self._post, self._version = (post, now) if lasts else (None, -1)
        limit = group.timeout_ns if timeout is None else nanoseconds(timeout)
        urgency = self._priority if priority is None else priority
        if at is None:
            request = post(self._source, self._target, urgency, limit, blocking)
        else:
            request = post(at, at if self._writes else 0, urgency, limit, blocking)
        return DONE if request is None else group.handle(request, blocking)

    def post_at(self, at: int, timeout: timedelta | None, blocking: bool, /) -> TimedTransfer:
        group, chosen, post = self._group, self._version, self._post
        if post is None or chosen != group.version:
            return self.post(at=at, timeout=timeout, blocking=blocking)
        limit = group.timeout_ns if timeout is None else nanoseconds(timeout)
        request = post(at, at if self._writes else 0, self._priority, limit, blocking)
        return DONE if request is None else group.handle(request, blocking)

    def forget(self) -> None:
        """Let go of the engine's part of the operation, as its group has been closed."""
        self._post = None


class PreparedParts(Prepared):
    """A prepared operation on several parts, or a message; see PreparedBuffer."""

    __slots__ = ("_group", "operation")

    def __init__(self, group: Binder, operation: Operation) -> None:
        self._group = group
        self.operation = operation

    def post(
        self,
        *,
        at: int | None = None,
        priority: int | None = None,
        timeout: timedelta | None = None,
        blocking: bool = False,
    ) -> TimedTransfer:
        group = self._group
        if at is not None:
            raise UsageError(f"{self.operation.kind} has no one buffer to replace", rank=group.rank)
        operation = self.operation
        if priority is not None:
            operation = operation._replace(priority=priority)
        limit = group.timeout_ns if timeout is None else nanoseconds(timeout)
        request = group.bind_parts(operation)(limit, blocking)
        return DONE if request is None else group.handle(request, blocking)


_MAX_TAG = 1 << 24
_FLOATS = (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16)
_BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)


def check_reduction(rank: int, count: int, dtype: DType, op: ReduceOp) -> int:
    """Return the size of `count` elements in bytes; raise UsageError for an undefined reduction."""
    if op is ReduceOp.NONE:
        raise UsageError("a reduction needs an operation, not NONE", rank=rank)
    if dtype in _FLOATS and op in _BITWISE:
        raise UsageError(f"{op.name} is not defined for {dtype.name.lower()}", rank=rank)
    if dtype is DType.BOOL and op is ReduceOp.AVG:
        raise UsageError("AVG is not defined for bool", rank=rank)
    if count < 0:
        raise UsageError(f"count must be at least 0, not {count}", rank=rank)
    return count * dtype.itemsize


def check_nodes(rank: int, size: int, runs: Runs, sources: Sequence[int]) -> None:
    """Raise UsageError unless the runs are those of `size` ranks and each own node has a source."""
    if len(runs.lengths) != size:
        raise UsageError(
            f"runs must have a length for each of {size} ranks, not {len(runs.lengths)}", rank=rank
        )
    if len(sources) != len(nodes := runs.nodes[rank]):
        raise UsageError(
            f"rank {rank} has {counted(len(nodes), 'node')}, not {len(sources)}: it needs the "
            "address of each",
            rank=rank,
        )


def sum_counts(rank: int, size: int, name: str, counts: Sequence[int]) -> int:
    """Return the sum of `counts`; raise UsageError unless each rank has a count of at least 0."""
    if len(counts) != size:
        raise UsageError(
            f"{name} must have an entry for each of {size} ranks, not {len(counts)}", rank=rank
        )
    if min(counts) < 0:
        raise UsageError(f"{name} must be at least 0, not {min(counts)}", rank=rank)
    return sum(counts)


def check_tag(rank: int, tag: int) -> int:
    """Return `tag`; raise UsageError if it does not fit into a frame header."""
    if not 0 <= tag < _MAX_TAG:
        raise UsageError(f"tag must be 0 to {_MAX_TAG - 1}, not {tag}", rank=rank)
    return tag


def check_collective_tag(rank: int, tag: int) -> int:
    """Return the tag, or the identity in a callback, of a collective; raise UsageError if wrong."""
    return tag if in_callback(tag) else check_tag(rank, tag)


def check_root(rank: int, size: int, root: int | None) -> None:
    """Raise UsageError unless `root` is a rank of the group or None (no root)."""
    if root is not None and not 0 <= root < size:
        raise UsageError(f"root must be a rank below {size}, not {root}", rank=rank)


def check_peer(rank: int, size: int, peer: int | None) -> None:
    """Raise UsageError unless `peer` is another rank of the group or None (any rank)."""
    if peer is not None and (not 0 <= peer < size or peer == rank):
        raise UsageError(f"peer must be another rank below {size}, not {peer}", rank=rank)


_EARLY = 16
"""The number of collectives of one kind with one tag, or without a tag, that a large group runs
over the links that it is opened with. Every rank counts alike, so all choose the same plan."""
_PREPARED = 8
"""The number of such collectives after which the group begins to connect the links of the later
plan, if that plan needs a link to every rank."""


_BUFFERS = (Kind.ALL_REDUCE, Kind.BROADCAST, Kind.REDUCE, Kind.BARRIER)
"""The collectives on one buffer; all others move a part for each rank."""
_MESSAGES = (Kind.SEND, Kind.RECV)
_REDUCING = (Kind.REDUCE, Kind.REDUCE_SCATTER)
_ROOTED = (Kind.BROADCAST, Kind.REDUCE, Kind.GATHER, Kind.SCATTER)

_COLLECTIVES = {kind: Collective[kind.name] for kind in Kind if kind not in _MESSAGES}


class Poster(Protocol):
    """The part of the engine that posts all_reduces: a group, or a division into slices."""

    def run(
        self,
        program: _native.Program,
        source: int,
        target: int,
        count: int,
        dtype: DType,
        op: ReduceOp,
        total_bytes: int,
        tag: int,
        priority: int,
        timeout_ns: int,
        blocking: bool,
    ) -> Posted:
        """Post an operation by a program; -1 stands for no tag."""

    def prepare(
        self,
        program: _native.Program,
        count: int,
        dtype: DType,
        op: ReduceOp,
        total_bytes: int,
        tag: int,
    ) -> PreparedRun:
        """Prepare to post an operation by a program many times."""


class Operations(Posts):
    """Collectives and messages of a group; slackline.nic.Group states the contract."""

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
        self.timeout_ns = timeout_ns
        """The timeout of operations that are posted without a timeout."""
        self.version = 0
        """A number that changes when prepared operations must choose their plans again."""
        self._prepared = WeakSet[PreparedBuffer]()
        self._preparing = threading.Lock()
        self._connect_all = prepare
        self._posted: dict[tuple[Collective, int | None], int] = {}
        self._closed = False
        self.rank = native.rank
        self.size = native.size

    def prepare(self, operation: Operation) -> Prepared:
        operation = self._checked(operation)
        if operation.kind in _BUFFERS and operation.runs is None:
            prepared = PreparedBuffer(self, operation)
            with self._preparing:
                self._prepared.add(prepared)
            return prepared
        return PreparedParts(self, operation)

    def post(
        self, operation: Operation, *, timeout: timedelta | None = None, blocking: bool = False
    ) -> TimedTransfer:
        limit = self.timeout_ns if timeout is None else nanoseconds(timeout)
        if operation.kind in _MESSAGES:
            return self._post_message(operation, limit, blocking)
        operation = self._checked(operation)
        if operation.kind in _BUFFERS and operation.runs is None:
            collective, dtype, count = self._bound(operation)
            early = self._is_early(collective, operation)
            poster, program = self._planned(operation, collective, early)
            request = poster.run(
                program,
                operation.sources[0],
                operation.targets[0],
                count,
                dtype,
                operation.reduction,
                count * dtype.itemsize,
                -1 if operation.tag is None else operation.tag,
                operation.priority,
                limit,
                blocking,
            )
            if early:
                self._count(collective, operation)
        else:
            request = self.bind_parts(operation)(limit, blocking)
        return DONE if request is None else self.handle(request, blocking)

    def _post_message(self, operation: Operation, limit_ns: int, blocking: bool) -> TimedTransfer:
        """Post a message; the checks are those of `_checked`, in fewer calls."""
        kind, dtype, sources, targets, counts, _, _, peer, tag, priority, *_ = operation
        if self._closed:
            self._require_open()
        if tag is not None and not 0 <= tag < _MAX_TAG:
            check_tag(self.rank, tag)
        if peer is not None and (not 0 <= peer < self.size or peer == self.rank):
            check_peer(self.rank, self.size, peer)
        receives = kind is Kind.RECV
        (address,) = targets if receives else sources
        (count,) = counts
        request = self._native.message(
            receives,
            address,
            count,
            dtype,
            count * dtype.itemsize,
            -1 if peer is None else peer,
            -1 if tag is None else tag,
            priority,
            limit_ns,
            blocking,
        )
        if request is None:
            return DONE
        if blocking:
            return self.handle(request, blocking)
        return NativeTransfer(request, self._completions)

    def _checked(self, operation: Operation) -> Operation:
        """Return an operation whose arguments are right on this rank, or raise UsageError."""
        if self._closed:
            self._require_open()
        kind, rank, size = operation.kind, self.rank, self.size
        if operation.tag is not None:
            (check_tag if kind in _MESSAGES else check_collective_tag)(rank, operation.tag)
        if kind is Kind.ALL_REDUCE:
            check_reduction(rank, operation.counts[0], operation.dtype, operation.reduction)
            if operation.runs is not None:
                check_nodes(rank, size, operation.runs, operation.sources)
            return operation
        if kind in _REDUCING:
            check_reduction(rank, operation.elements, operation.dtype, operation.reduction)
        if kind in _MESSAGES:
            check_peer(rank, size, operation.peer)
            return operation
        if kind in _ROOTED:
            check_root(rank, size, operation.peer)
        if kind is Kind.REDUCE and operation.peer != rank:
            return operation._replace(targets=(0,))
        if kind not in _BUFFERS:
            self._check_counts(operation)
        return operation

    def _check_counts(self, operation: Operation) -> None:
        rank, size, counts = self.rank, self.size, operation.counts
        if operation.kind is not Kind.ALL_TO_ALL:
            sum_counts(rank, size, "counts", counts)
            return
        expected = operation.target_counts
        sum_counts(rank, size, "source_counts", counts)
        sum_counts(rank, size, "target_counts", expected)
        if counts[rank] != expected[rank]:
            raise UsageError(
                f"rank {rank} sends itself {counts[rank]} elements but expects {expected[rank]}",
                rank=rank,
            )

    def _bound(self, operation: Operation) -> tuple[Collective, DType, int]:
        self._require_open()
        return _COLLECTIVES[operation.kind], operation.dtype, operation.counts[0]

    def _forget_prepared(self) -> None:
        """Let prepared operations go of the engine's parts; to be called once the group closes."""
        with self._preparing:
            for prepared in self._prepared:
                prepared.forget()

    def bind_buffer(self, operation: Operation) -> tuple[PostBuffer, bool]:
        """Return the function that posts an operation on one buffer by the plan for now.

        The second value is whether the plan lasts until `version` changes.
        """
        collective, dtype, count = self._bound(operation)
        early = self._is_early(collective, operation)
        poster, program = self._planned(operation, collective, early)
        tag = -1 if operation.tag is None else operation.tag
        total = count * dtype.itemsize
        post = poster.prepare(program, count, dtype, operation.reduction, total, tag).post
        if not early:
            return post, True

        def counting(source: int, target: int, priority: int, limit: int, blocking: bool) -> Posted:
            request = post(source, target, priority, limit, blocking)
            self._count(collective, operation)
            return request

        return counting, False

    def bind_parts(self, operation: Operation) -> PostParts:
        """Return the function that posts an operation on parts, or a message."""
        self._require_open()
        dtype, total = operation.dtype, operation.elements * operation.dtype.itemsize
        tag = -1 if operation.tag is None else operation.tag
        if operation.kind in _MESSAGES:
            receives = operation.kind is Kind.RECV
            (address,) = operation.targets if receives else operation.sources
            peer = -1 if operation.peer is None else operation.peer
            message, count, priority = self._native.message, operation.elements, operation.priority
            return partial(message, receives, address, count, dtype, total, peer, tag, priority)
        if operation.runs is not None:
            return self._bind_nodes(operation, operation.runs)
        collective = _COLLECTIVES[operation.kind]
        early = self._is_early(collective, operation)
        _, program = self._planned(operation, collective, early)
        chunks, op = self._chunks(operation), operation.reduction
        run, priority = self._native.run_chunks, operation.priority
        post = partial(run, program, chunks, dtype, op, total, tag, priority)
        if not early:
            return post

        def counting(limit_ns: int, blocking: bool) -> Posted:
            request = post(limit_ns, blocking)
            self._count(collective, operation)
            return request

        return counting

    def _bind_nodes(self, operation: Operation, runs: Runs) -> PostParts:
        """Return the function that posts an all_reduce of the nodes of a tree."""
        (target,), (count,) = operation.targets, operation.counts
        dtype, op, priority = operation.dtype, operation.reduction, operation.priority
        total = count * dtype.itemsize
        tag = -1 if operation.tag is None else operation.tag
        chosen = self._book.tree(runs, total, dtype, op)
        if chosen.one_buffer:
            (source,), poster = operation.sources, self._poster(chosen.name)
            args = source, target, count, dtype, op, total, tag, priority
            return partial(poster.run, chosen.program, *args)
        chunks = nodes_to_all(self.rank, runs, operation.sources, target, count, dtype.itemsize)
        run = self._native.run_chunks
        return partial(run, chosen.program, chunks, dtype, op, total, tag, priority)

    def _poster(self, _name: str) -> Poster:
        """Return what posts all_reduces of the plan with this name."""
        return self._native

    def _chunks(self, operation: Operation) -> list[Chunk]:
        kind, rank = operation.kind, self.rank
        sources, targets, counts = operation.sources, operation.targets, operation.counts
        if kind is Kind.ALL_TO_ALL:
            return all_to_all(rank, sources, counts, targets, operation.target_counts)
        if kind in (Kind.REDUCE_SCATTER, Kind.SCATTER):
            (target,) = targets
            return each_to_own(rank, self._of_root(operation, sources), counts, target)
        (source,) = sources
        return own_to_each(rank, source, self._of_root(operation, targets), counts)

    def _of_root(self, operation: Operation, addresses: Sequence[int]) -> Sequence[int]:
        """Return the addresses of the ranks' parts; only the root has any."""
        return addresses if operation.peer in (None, self.rank) else [0] * self.size

    def _planned(
        self, operation: Operation, collective: Collective, early: bool
    ) -> tuple[Poster, _native.Program]:
        """Return the program of an operation, and what posts it."""
        total = operation.elements * operation.dtype.itemsize
        chosen = self._book.select(collective, total, operation.dtype, operation.peer, early=early)
        return self._native, chosen.program

    def _is_early(self, collective: Collective, operation: Operation) -> bool:
        """Return whether the next collective of this kind and tag uses only the first links.

        One that is posted in a callback does, since the ranks may post these in different orders.
        One that asks for rank order in a group that adds in any order does not: there the plans
        over the first links round half types at every rank.
        """
        if not self._book.connects_later:
            return False
        if operation.rank_order and self._book.order != "rank":
            return False
        return self._posted.get((collective, operation.tag), 0) < _EARLY

    def _count(self, collective: Collective, operation: Operation) -> None:
        """Count a posted collective that used only the group's first links."""
        tag, root, dtype = operation.tag, operation.peer, operation.dtype
        if in_callback(tag):
            return  # Such a tag is used once.
        nbytes = operation.elements * dtype.itemsize
        number = self._posted[collective, tag] = self._posted.get((collective, tag), 0) + 1
        if number == _PREPARED:
            later = self._book.select(collective, nbytes, dtype, root).name
            if root is None and later in (DIRECT, MESH):
                self._connect_all()

    def handle(self, request: _native.Request | TimedTransfer, blocking: bool) -> TimedTransfer:
        """Return the Transfer of a posted operation; if it was blocking, raise its error."""
        if not isinstance(request, _native.Request):
            return request
        transfer = NativeTransfer(request, self._completions)
        if blocking and (failure := request.failure()) is not None:
            raise to_error(failure)
        return transfer

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("the group is closed", rank=self.rank)
