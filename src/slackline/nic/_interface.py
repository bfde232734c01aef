"""The interface of a NIC engine: Nic, Group, Transfer, Store; and the base class of all groups.

Addresses are integers (a tensor's `data_ptr()`), and counts are numbers of elements. The caller
keeps the buffers of a posted operation alive and untouched until its Transfer is done. The module
does not depend on torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any, Protocol, runtime_checkable

from slackline._lazy import record
from slackline.nic._operation import Operation, TagAllocator


@runtime_checkable
class Store(Protocol):
    """A key-value store shared by all ranks, for the rendezvous before links exist.

    The stores of torch.distributed fit this protocol.
    """

    def set(self, key: str, value: str, /) -> None:
        """Publish `value` under `key`."""

    def get(self, key: str, /) -> bytes:
        """Return the value under `key`; it is called once `check` has said that it is there."""

    def check(self, keys: list[str], /) -> bool:
        """Return whether all `keys` have been set; never block."""


@runtime_checkable
class BatchStore(Store, Protocol):
    """A store that returns several values for the price of one."""

    def get_together(self, keys: list[str], /) -> list[bytes]:
        """Return the values under `keys`, of which `check` has said that they are there."""


@record(frozen=True, kw_only=True)
class Introduction:
    """The words that the ranks of a new group exchange when they meet, beside their addresses."""

    opening: str
    """The name of the opening, which all its ranks know and which no other opening has."""
    said: str
    """What this rank says."""
    check: Callable[[int, str], None]
    """A function that gets each rank, with what it has said, and raises an error to end the
    opening."""


@runtime_checkable
class Transfer(Protocol):
    """The handle of a posted operation."""

    @property
    def source(self) -> int | None:
        """The sender of a finished receive from any source; None for every other operation."""

    def done(self) -> bool:
        """Return whether the operation has ended, with success or an error. Never blocks."""

    def wait(self, timeout: timedelta | None = None) -> None:
        """Block, without the GIL, until the operation has ended.

        Raises the operation's error, of a type in `slackline.errors`, if the operation failed.
        Raises `slackline.errors.TimeoutError` after `timeout`; the operation then continues.
        """

    def add_done_callback(self, fn: Callable[[BaseException | None], None], /) -> None:
        """Have `fn(error)` called once when the operation has ended; `error` is None on success.

        The engine's completion thread calls `fn`. If the operation has already ended, this method
        calls `fn` itself before it returns.
        """

    def open_at_end(self, word: int, value: int) -> None:
        """Let the engine store `value` at the address `word` when the operation succeeds.

        The word has 32 bits. The store needs no thread of Python, so that a stream of an
        accelerator which waits for it goes on while such threads cannot run. It comes before the
        end can be seen, and only if the operation still runs: a callback must open the gate too.
        """


class TimedTransfer(Transfer, Protocol):
    """The handle of a posted operation whose end the engine notes."""

    @property
    def ended_ns(self) -> int:
        """The time of the operation's end by the monotonic clock in ns; 0 while it is pending.

        The value stays 0 for an operation that has ended within the call that posted it.
        """


@record(frozen=True, slots=True)
class Completion:
    """The end of an operation that a completion queue watched."""

    token: Any
    """The value that the caller gave with the operation."""
    error: BaseException | None
    """The operation's error, of a type in `slackline.errors`; None if it succeeded."""
    ended_ns: int
    """The time when the engine ended the operation, by the monotonic clock."""


class CompletionQueue(Protocol):
    """A queue by which one thread waits for the end of any of several operations.

    Any thread may add operations; only one thread may poll and wait.
    """

    def add(self, transfer: Transfer, token: Any, /) -> None:
        """Watch a posted operation of the queue's group; keep `token` alive until its end.

        The end is reported once, also if the operation has already ended.
        """

    def poll(self) -> list[Completion]:
        """Return the watched operations that have ended since the previous call; do not block."""

    def wait(self, timeout: timedelta, /) -> list[Completion]:
        """Block, without the GIL, until a watched operation has ended; return all that have.

        The list is empty after `timeout`, and once the engine is closed.
        """


class Prepared(Protocol):
    """An operation that its group has checked, ready to be posted any number of times."""

    def post(
        self,
        *,
        at: int | None = None,
        priority: int | None = None,
        timeout: timedelta | None = None,
        blocking: bool = False,
    ) -> TimedTransfer:
        """Post the operation; return its Transfer.

        `at` is the address of other memory of the same size, for an operation that works in place
        on one buffer. `priority` replaces the operation's. `timeout` limits the operation's time;
        None takes the group's timeout. With `blocking` the operation runs in the caller's thread:
        the call returns a finished Transfer, and raises the operation's error at once.
        """

    def post_at(self, at: int, timeout: timedelta | None, blocking: bool, /) -> TimedTransfer:
        """Post the operation on other memory, as `post` does; without keywords, which take time."""
        return self.post(at=at, timeout=timeout, blocking=blocking)


@runtime_checkable
class Group(Protocol):
    """A group of ranks on an engine, from its rendezvous to its end."""

    @property
    def rank(self) -> int:
        """The rank of this process in the group."""

    @property
    def size(self) -> int:
        """The number of ranks in the group."""

    @property
    def timeout(self) -> timedelta:
        """The timeout of operations that are posted without a timeout."""

    @property
    def tag_allocator(self) -> TagAllocator:
        """The allocator of the group's tags that the library reserves for its own operations."""

    @property
    def rank_ordered(self) -> bool:
        """Whether every element is summed in the order of the ranks.

        A sum is then bit-identical for every place of the element in memory and for every plan
        (collective algorithm).
        """

    def prepare(self, operation: Operation, /) -> Prepared:
        """Check an operation of this rank, and prepare to post it.

        Raises UsageError for wrong arguments, and ClosedError if the group is closed.
        """

    def post(
        self, operation: Operation, *, timeout: timedelta | None = None, blocking: bool = False
    ) -> TimedTransfer:
        """Post an operation once; `timeout` and `blocking` are those of `Prepared.post`."""

    def completion_queue(self) -> CompletionQueue:
        """Return a new queue for the ends of this group's operations."""

    def allocate(self, nbytes: int) -> int:
        """Return the address of `nbytes` of registered memory, aligned to 64 bytes.

        The caller reads and writes the memory directly, and peers on the same host read it in
        place, without a copy.
        """

    def free(self, address: int) -> None:
        """Free memory from `allocate`; no pending operation may still use the memory."""

    def counters(self) -> Mapping[str, int]:
        """Return cumulative counters of the work done so far, by name."""

    def lost(self) -> frozenset[int]:
        """Return the ranks whose processes have ended or cannot be reached any more.

        The result does not depend on pending operations. Never blocks, and works after `close`.
        """

    def close(self, timeout: timedelta | None = None) -> None:
        """Complete all posted operations, or fail them after `timeout`, and end the group.

        If `timeout` is None, the group's timeout applies. Later operations raise ClosedError.
        """

    def abort(self, reason: str) -> None:
        """End the group at once and fail all pending operations, here and on the peers.

        The error of each operation contains `reason`.
        """


@runtime_checkable
class Nic(Protocol):
    """The engine of one process, which serves every group that the process takes part in."""

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
        """Perform the rendezvous with the other ranks through `store` and return the group.

        `timeout` is the default of the group's operations. `opening` limits the rendezvous; None
        takes `timeout`. `members[i]` is the rank in the job of the group's rank i, which telemetry
        and verdicts name; if `members` is None, the two are equal. The plans of collectives are
        timed `anew`, or the group uses the times of earlier groups of the ranks' engines, if there
        are any; all ranks must ask for the same. If they all have an `introduction`, they meet in
        one exchange with the store.
        """

    def stepped(self, optimizer: int) -> None:
        """Write to the telemetry, if there is one, that the program calls an optimizer's `step`.

        `optimizer` is the optimizer's index among those that exist.
        """

    def close(self) -> None:
        """Close the engine and every group that is still open."""


def _posts(make: Callable[..., Operation]) -> Callable[..., Any]:
    """Return a method that posts the operation that `make` returns for the same arguments."""

    @wraps(make)
    def post(
        self: Posts,
        *args: Any,
        timeout: timedelta | None = None,
        blocking: bool = False,
        **named: Any,
    ) -> TimedTransfer:
        return self.post(make(*args, **named), timeout=timeout, blocking=blocking)

    return post


class Posts:
    """The base class of all groups: `group.send(...)` posts `Operation.send(...)`, and so on.

    Each method takes the arguments of the constructor of its name, and those of `Prepared.post`.
    """

    def prepare(self, operation: Operation, /) -> Prepared:
        raise NotImplementedError

    def post(
        self, operation: Operation, *, timeout: timedelta | None = None, blocking: bool = False
    ) -> TimedTransfer:
        return self.prepare(operation).post(timeout=timeout, blocking=blocking)

    all_reduce = _posts(Operation.all_reduce)
    reduce_scatter = _posts(Operation.reduce_scatter)
    all_gather = _posts(Operation.all_gather)
    broadcast = _posts(Operation.broadcast)
    reduce = _posts(Operation.reduce)
    gather = _posts(Operation.gather)
    scatter = _posts(Operation.scatter)
    all_to_all = _posts(Operation.all_to_all)
    barrier = _posts(Operation.barrier)
    send = _posts(Operation.send)
    recv = _posts(Operation.recv)
