"""An operation of a group as data, before it is posted; and the tags that tell operations apart.

    operation = Operation.all_reduce(source, target, count, DType.FLOAT32, ReduceOp.SUM)
    prepared = group.prepare(operation)     checked; the engine's plan and arguments
    transfer = prepared.post()              may be called again

Addresses are integers, and an operation keeps no memory alive: that is the caller's part.

Parts of the library reserve tags of a group. Reductions and messages have separate tags: a
reduction is never matched with a send or receive that has the same tag. All ranks reserve tags in
the same order, so all ranks get the same tags.

    reductions   0, 1, 2, ... in the order of the reservations
    messages     user programs from 0 upwards; reservations from the top downwards

A collective that is posted in a callback has, in place of a tag, an identity of its own: a number
from CALLBACK_TAGS on, which the ranks derive alike and use once.

    callback_tag          the number of an operation, the callback of it, the place in the callback
    nested_callback_tag   a hash, for all that does not fit into these numbers
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from slackline.errors import UsageError
from slackline.wire import DType, ReduceOp

if TYPE_CHECKING:
    from slackline.plan.collective import Runs

__all__ = [
    "CALLBACK_TAGS",
    "MOST_TAGS",
    "PLACES",
    "Kind",
    "Operation",
    "TagAllocator",
    "callback_tag",
    "in_callback",
    "nested_callback_tag",
]


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
    rank_order: bool = False
    """Whether an all_reduce must add in rank order, and round half types once, in any group.

    Equal on all ranks. A group whose `rank_ordered` is True does so without the request."""
    runs: Runs | None = None
    """The leaves of each rank in an all_reduce of nodes of a tree, else None."""

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
        rank_order: bool = False,
    ) -> Operation:
        """Reduce `count` elements of every rank's source into every rank's target.

        Source and target may be the same memory. With `rank_order` each element is summed in the
        order of the ranks, half types in fp32 with one rounding at the end, whatever the group's
        order is.
        """
        at, to, counts = (source,), (target,), (count,)
        return cls(Kind.ALL_REDUCE, dtype, at, to, counts, (), op, None, tag, priority, rank_order)

    @classmethod
    def all_reduce_nodes(
        cls,
        sources: Sequence[int],
        target: int,
        count: int,
        dtype: DType,
        op: ReduceOp,
        runs: Runs,
        *,
        tag: int | None = None,
        priority: int = 0,
    ) -> Operation:
        """Reduce several nodes of every rank in a fixed binary tree into every rank's target.

        `sources[i]` has `count` elements with the sum of the leaves of `runs.nodes[rank][i]`. The
        result has the same bits whatever the number of ranks and their runs, if `op` is associative
        only within the tree, as SUM of floats is. AVG divides once by the number of leaves. Sums of
        half types are rounded after each addition. The target may be a source. `runs` must be equal
        on all ranks.
        """
        to, counts = (target,), (count,)
        kind, none = Kind.ALL_REDUCE, ()
        return cls(kind, dtype, sources, to, counts, none, op, None, tag, priority, False, runs)

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


MOST_TAGS = 1 << 24
"""The number of tags: a frame has 24 bits for its tag."""
_LOWEST_MESSAGE = 1 << 20
"""The lowest tag that the library reserves for messages. User programs, which usually count from 0,
have the lower tags."""
CALLBACK_TAGS = 7 << 56
"""The lowest identity of a collective that is posted in a callback. The engine reads the class of
an operation in these bits."""
_NESTED_CALLBACK_TAGS = 8 << 56
_END_OF_CALLBACK_TAGS = 9 << 56
PLACES = 1 << 12
"""The number of callbacks, and of places in each, that `callback_tag` distinguishes."""


def callback_tag(number: int, callback: int, place: int) -> int:
    """Return the identity of a collective in a callback of the operation `number` of its group.

    `callback` and `place` must be below PLACES.
    """
    return CALLBACK_TAGS | callback << 44 | place << 32 | number & 0xFFFF_FFFF


def nested_callback_tag(identity: int) -> int:
    """Return the identity, from 56 bits of a hash, of any other collective in a callback."""
    return _NESTED_CALLBACK_TAGS | identity


def in_callback(tag: int | None) -> bool:
    """Return whether `tag` is the identity of a collective that is posted in a callback."""
    return tag is not None and CALLBACK_TAGS <= tag < _END_OF_CALLBACK_TAGS


class TagAllocator:
    """The tags of one group that are still free for the library's own use."""

    def __init__(self) -> None:
        self._reductions = 0
        self._messages = MOST_TAGS

    def reserve_reductions(self, count: int) -> int:
        """Reserve `count` tags for reductions; return the first.

        Raises UsageError if too few are left.
        """
        first = self._reductions
        if first + count > MOST_TAGS:
            raise UsageError(
                f"a group has {MOST_TAGS} tags for reductions, of which {first} are reserved: "
                f"no room for {count} more"
            )
        self._reductions = first + count
        return first

    def reserve_messages(self, count: int) -> int:
        """Reserve `count` tags for sends and receives; return the first.

        Raises UsageError if too few are left.
        """
        first = self._messages - count
        if first < _LOWEST_MESSAGE:
            raise UsageError(
                f"a group has {MOST_TAGS - _LOWEST_MESSAGE} tags to reserve for messages, of which "
                f"{MOST_TAGS - self._messages} are reserved: no room for {count} more"
            )
        self._messages = first
        return first
