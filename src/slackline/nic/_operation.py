"""An operation of a group as data: one collective or one message, before it is posted.

    operation = Operation.all_reduce(source, target, count, DType.FLOAT32, ReduceOp.SUM)
    prepared = group.prepare(operation)     checked; the engine's plan and arguments
    transfer = prepared.post()              may be called again

Addresses are integers, and an operation keeps no memory alive: that is the caller's part.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from slackline.wire import DType, ReduceOp

__all__ = ["Kind", "Operation"]


class Kind(StrEnum):
    """The kinds of operations: collectives, and the two ends of a message."""

    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    ALL_TO_ALL = "all_to_all"
    BARRIER = "barrier"
    SEND = "send"
    RECV = "recv"


class Operation(NamedTuple):
    """A rank's part in a collective or a message, without a reference to memory.

    Each kind has a constructor of its name, which states what the fields of that kind hold.
    """

    kind: Kind
    dtype: DType = DType.UINT8
    """The type of the elements."""
    sources: Sequence[int] = ()
    """The addresses of the memory that is read: one, or one for each rank."""
    targets: Sequence[int] = ()
    """The addresses of the memory that is written: one, or one for each rank."""
    counts: Sequence[int] = ()
    """The numbers of elements: of the one buffer, or of each rank's part."""
    target_counts: Sequence[int] = ()
    """The numbers of elements that all_to_all receives from each rank; empty for other kinds."""
    reduction: ReduceOp = ReduceOp.NONE
    peer: int | None = None
    """The root of a collective, or the other end of a message; None for none, or for any rank."""
    tag: int | None = None
    """A number from 0 to 2**24 - 1 that matches the operation with those of other ranks. A
    collective without a tag is matched by the order of the calls. A number from `callback_tag` or
    `nested_callback_tag` matches one collective alone, whatever the order of the calls."""
    priority: int = 0
    """The priority; a lower number is sent first."""

    @property
    def elements(self) -> int:
        """The number of elements of all parts together."""
        return sum(self.counts)

    @classmethod
    def all_reduce(
        cls,
        source: int,
        target: int,
        count: int,
        dtype: DType,
        op: ReduceOp,
        *,
        tag: int | None = None,
        priority: int = 0,
    ) -> Operation:
        """Reduce `count` elements of every rank's source into every rank's target.

        Source and target may be the same memory.
        """
        at, to, counts = (source,), (target,), (count,)
        return cls(Kind.ALL_REDUCE, dtype, at, to, counts, (), op, None, tag, priority)

    @classmethod
    def reduce_scatter(
        cls,
        sources: Sequence[int],
        counts: Sequence[int],
        target: int,
        dtype: DType,
        op: ReduceOp,
        *,
        tag: int | None = None,
        priority: int = 0,
    ) -> Operation:
        """Reduce part i (`sources[i]`, `counts[i]` elements) of every rank into rank i's target."""
        to, kind = (target,), Kind.REDUCE_SCATTER
        return cls(kind, dtype, sources, to, counts, (), op, None, tag, priority)

    @classmethod
    def all_gather(
        cls,
        source: int,
        targets: Sequence[int],
        counts: Sequence[int],
        dtype: DType,
        *,
        tag: int | None = None,
        priority: int = 0,
    ) -> Operation:
        """Put rank i's source (`counts[i]` elements) into `targets[i]` of every rank."""
        at, none = (source,), ReduceOp.NONE
        return cls(Kind.ALL_GATHER, dtype, at, targets, counts, (), none, None, tag, priority)

    @classmethod
    def broadcast(
        cls,
        address: int,
        count: int,
        dtype: DType,
        root: int,
        *,
        tag: int | None = None,
        priority: int = 0,
    ) -> Operation:
        """Copy `count` elements at the root's `address` to `address` of every other rank."""
        at, counts, none = (address,), (count,), ReduceOp.NONE
        return cls(Kind.BROADCAST, dtype, at, at, counts, (), none, root, tag, priority)

    @classmethod
    def reduce(
        cls,
        source: int,
        target: int,
        count: int,
        dtype: DType,
        op: ReduceOp,
        root: int,
        *,
        tag: int | None = None,
        priority: int = 0,
    ) -> Operation:
        """Reduce every rank's source into the root's target; other targets are not written."""
        at, to, counts = (source,), (target,), (count,)
        return cls(Kind.REDUCE, dtype, at, to, counts, (), op, root, tag, priority)

    @classmethod
    def gather(
        cls,
        source: int,
        targets: Sequence[int],
        counts: Sequence[int],
        dtype: DType,
        root: int,
        *,
        tag: int | None = None,
        priority: int = 0,
    ) -> Operation:
        """Put rank i's source (`counts[i]` elements) into the root's `targets[i]`.

        `targets` is empty on every other rank.
        """
        at, none = (source,), ReduceOp.NONE
        return cls(Kind.GATHER, dtype, at, targets, counts, (), none, root, tag, priority)

    @classmethod
    def scatter(
        cls,
        sources: Sequence[int],
        target: int,
        counts: Sequence[int],
        dtype: DType,
        root: int,
        *,
        tag: int | None = None,
        priority: int = 0,
    ) -> Operation:
        """Put the root's `sources[i]` (`counts[i]` elements) into rank i's target.

        `sources` is empty on every other rank.
        """
        to, none = (target,), ReduceOp.NONE
        return cls(Kind.SCATTER, dtype, sources, to, counts, (), none, root, tag, priority)

    @classmethod
    def all_to_all(
        cls,
        sources: Sequence[int],
        source_counts: Sequence[int],
        targets: Sequence[int],
        target_counts: Sequence[int],
        dtype: DType,
        *,
        tag: int | None = None,
        priority: int = 0,
    ) -> Operation:
        """Put `sources[i]` of rank j into `targets[j]` of rank i.

        The counts of sender and receiver must agree.
        """
        return cls(
            Kind.ALL_TO_ALL,
            dtype,
            sources,
            targets,
            source_counts,
            target_counts,
            tag=tag,
            priority=priority,
        )

    @classmethod
    def barrier(cls, *, tag: int | None = None, priority: int = 0) -> Operation:
        """Make a barrier, whose Transfer is done once every rank has posted its own.

        Without a tag a barrier begins after the end of all operations without a tag that this
        rank has posted before.
        """
        return cls(
            Kind.BARRIER, counts=(0,), sources=(0,), targets=(0,), tag=tag, priority=priority
        )

    @classmethod
    def send(
        cls, address: int, count: int, dtype: DType, peer: int, tag: int, *, priority: int = 0
    ) -> Operation:
        """Send to `peer`; the n-th send with a tag matches the n-th receive with that tag."""
        at, counts, none = (address,), (count,), ReduceOp.NONE
        return cls(Kind.SEND, dtype, at, (), counts, (), none, peer, tag, priority)

    @classmethod
    def recv(
        cls,
        address: int,
        count: int,
        dtype: DType,
        peer: int | None,
        tag: int,
        *,
        priority: int = 0,
    ) -> Operation:
        """Receive elements from `peer`, or from the first rank that sends if `peer` is None.

        In the second case the Transfer's `source` is the sending rank.
        """
        to, counts, none = (address,), (count,), ReduceOp.NONE
        return cls(Kind.RECV, dtype, (), to, counts, (), none, peer, tag, priority)
