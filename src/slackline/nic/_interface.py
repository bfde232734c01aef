"""What a NIC engine offers, as Protocols: Nic, Group, Transfer and the Store they meet through.

Addresses are integers (a tensor's `data_ptr()`), counts are elements. Whoever posts an operation
keeps its buffers alive and untouched until its Transfer is done. Nothing here knows torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Protocol, runtime_checkable

from slackline.wire import DType, ReduceOp


class Store(Protocol):
    """Where ranks meet before they have links: a key-value store all of them see. torch's stores
    fit.
    """

    def set(self, key: str, value: str, /) -> None:
        """Publish `value` under `key`."""

    def get(self, key: str, /) -> bytes:
        """Return the value under `key`; blocks until somebody has set it."""


@runtime_checkable
class Transfer(Protocol):
    """A posted operation."""

    @property
    def source(self) -> int | None:
        """The rank a finished receive from any source came from; None for every other operation."""

    def done(self) -> bool:
        """Whether the operation has ended, well or badly. Never blocks."""

    def wait(self, timeout: timedelta | None = None) -> None:
        """Block (without the GIL) until the operation has ended; raises its `slackline.errors` type
        if it failed.

        A timeout ends the wait with `slackline.errors.TimeoutError`; the operation goes on.
        """

    def add_done_callback(self, fn: Callable[[BaseException | None], None], /) -> None:
        """Call `fn(error)` once, on the engine's completion thread, or at once if the operation has
        ended.
        """


@runtime_checkable
class Group(Protocol):
    """One life of a group of ranks on an engine.

    `tag` None: a collective, matched by the order of the calls. A tag (0 to 2**24 - 1) matches
    whatever the posting order. `priority`: lower is sent first. `timeout` None: the group's.
    `blocking`: run in the caller's thread and return a finished Transfer; errors are raised at
    once.
    """

    @property
    def rank(self) -> int:
        """The rank of this process in the group."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    @property
    def timeout(self) -> timedelta:
        """The timeout of operations that say nothing else."""

    @property
    def rank_ordered(self) -> bool:
        """Whether every element is summed in the order of the ranks, so that its bits do not depend
        on where in memory it lies, nor on the plan.
        """

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
        """Reduce `count` elements of every rank's source into every rank's target. They may be the
        same memory.
        """

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
        """Reduce part i (`sources[i]`, `counts[i]` elements) of every rank into rank i's target."""

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
        """Put rank i's source (`counts[i]` elements) into `targets[i]` of every rank."""

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
        """Copy the root's memory to the same operation's memory on every rank."""

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
        """Reduce every rank's source into the root's target; other targets are left alone."""

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
        """Put rank i's source (`counts[i]` elements) into the root's `targets[i]`; targets are
        empty elsewhere.
        """

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
        """Put the root's `sources[i]` (`counts[i]` elements) into rank i's target; sources are
        empty elsewhere.
        """

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
        """Put `sources[i]` of rank j into `targets[j]` of rank i; the counts of the two sides must
        agree.
        """

    def barrier(
        self,
        *,
        tag: int | None = None,
        priority: int = 0,
        timeout: timedelta | None = None,
        blocking: bool = False,
    ) -> Transfer:
        """Be done when every rank has posted its barrier."""

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
        """Send to `peer`; the n-th send with a tag meets the n-th receive with it."""

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
        """Receive from `peer`, or from whoever sends first if None; the Transfer's `source` then
        tells who.
        """

    def allocate(self, nbytes: int) -> int:
        """Return the address of `nbytes` of registered memory, 64-byte aligned, readable and
        writable in place.
        """

    def free(self, address: int) -> None:
        """Give memory from `allocate` back. No operation may use it any more."""

    def counters(self) -> Mapping[str, int]:
        """What the group has done so far, by name."""

    def lost(self) -> frozenset[int]:
        """The ranks whose processes have ended or cannot be reached any more, whether or not an
        operation needed them. Never blocks; goes on telling after `close`.
        """

    def close(self, timeout: timedelta | None = None) -> None:
        """End the group in good order: all posted work is done first, or fails after `timeout`.

        None: the group's. Further use raises ClosedError.
        """

    def abort(self, reason: str) -> None:
        """End the group now: pending operations here and on the peers fail with an error that gives
        the reason.
        """


@runtime_checkable
class Nic(Protocol):
    """One process's engine: it serves every group the process takes part in."""

    def open_group(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        timeout: timedelta,
        opening: timedelta | None = None,
    ) -> Group:
        """Meet the other ranks through `store` and return the group; `timeout` is that of its
        operations, `opening` that of the meeting (None: the same).
        """

    def close(self) -> None:
        """Close the engine and every group that is still open."""
