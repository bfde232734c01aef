"""A group of ranks on the native engine: its epoch, its operations, and the release at the end.

Every frame carries the epoch of its group, 32 bits drawn from the group's secret; a number stands
for one group at a time. A number that is drawn again while an older group with it is open, or while
frames of that group may still arrive, would mix the two groups up.

torch's C++ code keeps some Python objects for longer than the interpreter: a process group by the
caches of DTensor or by a tensor's hook, the Work of a functional collective that nobody waited for.
A native object of the engine that such an object refers to would outlive the interpreter too, and
nanobind would print it as leaked. So the native objects are released before the interpreter ends.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import slackline._native as _native
from slackline.errors import ClosedError, UsageError
from slackline.nic._operation import Kind, Operation, TagAllocator, in_callback
from slackline.nic._translation import nanoseconds
from slackline.nic.collectives import (
    CHAIN,
    DIRECT,
    STAR,
    Completions,
    NativeCompletionQueue,
    NativeTransfer,
    Operations,
    PlanBook,
    Poster,
    Selected,
)
from slackline.plan.collective import Collective
from slackline.units import show_bytes
from slackline.wire import DType, ReduceOp

if TYPE_CHECKING:
    from slackline.detect import Judgement
    from slackline.nic.collectives import KnownTimes, Sharing, TreePlan
    from slackline.nic.offload import Star
    from slackline.plan.collective import Runs
    from slackline.records import LinkReport

__all__ = ["Epochs", "NativeGroup", "release_native_objects"]


class UsesEpochs(Protocol):
    """The method of the engine that the table calls."""

    def uses_epoch(self, epoch: int) -> bool: ...


class Epochs:
    """The epochs that are in use on an engine: those the engine knows, and those of openings.

    Any thread may call. `engine` is to be set as soon as there is one.
    """

    def __init__(self) -> None:
        self.engine: UsesEpochs | None = None
        self._lock = threading.Lock()
        self._reserved = Counter[int]()

    @contextmanager
    def opening(self) -> Iterator[Callable[[Sequence[int]], int]]:
        """Provide a function to reserve the candidates for the epoch of a group that is opened.

        The function returns a bit mask of the candidates that the group cannot have, since another
        group has them; bit i stands for candidate i. The candidates stay reserved until the end of
        the context, by which the engine knows the one that was chosen.
        """
        mine = list[int]()

        def reserve(candidates: Sequence[int]) -> int:
            with self._lock:
                taken = sum(
                    1 << bit
                    for bit, epoch in enumerate(candidates)
                    if epoch in self._reserved
                    or (self.engine is not None and self.engine.uses_epoch(epoch))
                )
                mine.extend(candidates)
                self._reserved.update(candidates)
            return taken

        try:
            yield reserve
        finally:
            with self._lock:
                self._reserved -= Counter(mine)


_OWN = 4
"""The mark of operations by which ranks time plans and agree on numbers: the program's operations
have sequence numbers apart from them. Marks 1 and 2 are of `Sharing`, and the class of operations
that 3 would give is that of callbacks."""

_CACHED_SHAPES = 4096
Plans = dict[tuple[int, DType, ReduceOp, bool], tuple[Poster, _native.Program]]
"""What posts an all_reduce, by its count, its type, its reduction and its request of rank order."""


class NativeGroup(Operations):
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
        link_reports: Callable[[], list[LinkReport]],
        counters: Callable[[], Mapping[str, int]],
        prepare: Callable[[], None],
    ) -> None:
        super().__init__(native, book, completions, nanoseconds(timeout), prepare)
        self._engine = engine
        self.timeout = timeout
        self._on_close = on_close
        self._lost, self._health, self._counters = lost, health, counters
        self._link_reports = link_reports
        self._process = os.getpid()
        self._star: Star | None = None
        self._sharing: Sharing | None = None
        self._all_reduces: Plans = {}
        self._early_all_reduces: Plans = {}
        self._callback_all_reduces: Plans = {}
        """Of all_reduces that are posted in callbacks. The ranks may post these in different
        orders, so none depends on earlier ones: not on measured shares, nor on links to come."""
        self._connects_later = book.connects_later
        self._opening_ends_ns: int | None = None
        """The end of the opening's time by time.monotonic_ns(); None once the group is open."""
        self.tag_allocator = TagAllocator()
        self.rank_ordered = book.order == "rank"

    @property
    def all_shared(self) -> bool:
        """Whether every rank is on this host and reached through shared memory."""
        return self._native.all_shared

    # These are methods, so that a reference to one refers to the engine through the group alone.

    def lost(self) -> frozenset[int]:
        return self._lost()

    def health(self) -> list[Judgement]:
        return self._health()

    def link_reports(self) -> list[LinkReport]:
        return self._link_reports()

    def counters(self) -> Mapping[str, int]:
        return self._counters()

    def rail_names(self) -> list[str]:
        """Return the names of all rails of the engine, sorted; each names its path to a peer."""
        return sorted(rail.name for rail in self._engine.rails())

    def plan_for(
        self,
        nbytes: int,
        dtype: DType = DType.FLOAT32,
        op: ReduceOp = ReduceOp.SUM,
        *,
        rank_order: bool = False,
        runs: Runs | None = None,
    ) -> Selected | TreePlan:
        """Return the plan that an all_reduce of `nbytes` runs, with the reason for the choice.

        With `runs` the ranks have nodes of a tree.
        """
        if runs is not None:
            return self._book.tree(runs, nbytes, dtype, op)
        return self._book.all_reduce(nbytes, dtype, op, rank_order=rank_order)

    def agree(self, address: int, count: int) -> None:
        """Replace `count` 64-bit integers, each by its maximum over all ranks; block until done."""
        self._timed(self._agreeing, address, count * DType.INT64.itemsize, DType.INT64)

    def _largest(self, values: Sequence[int]) -> list[int]:
        """Return the maximum over all ranks of each value."""
        agreed = (ctypes.c_int64 * len(values))(*values)
        self.agree(ctypes.addressof(agreed), len(values))
        return list(agreed)

    def use(self, star: Star) -> None:
        """Allow all_reduces to go through the aggregator of `star` from now on."""
        self._star = star
        self._book.reach_star(star.most_bytes, adds_trees=star.adds_trees)

    def opens_until(self, deadline_s: float) -> None:
        """Have the operations before the end of `calibrate` end by a time of time.monotonic()."""
        self._opening_ends_ns = int(deadline_s * 1e9)

    def calibrate(
        self, known: KnownTimes, links: Sequence[int] | None = None, *, anew: bool
    ) -> None:
        """Time the candidate plans, to use the fastest from now on; every rank must call this once.

        `known` has the times that earlier groups of the engine have measured, and gets those of
        this group. The group uses the former if it need not time the plans `anew`, and if any rank
        knows times. `links` are the engine's numbers of the group's links. If `links` is given,
        each rank's share of the work in long all_reduces follows the rate of its port; see
        `Sharing`.
        """
        if self.size > 1:
            if anew or not known.teach(self._book, self._largest):
                from slackline.nic.collectives import measure  # A rank alone measures nothing.

                measured = measure(self._book.timed(), self._timed, self.size, self._agreeing)
                self._book.learn_timed(measured)
                known.note(self._book, measured)
            self._all_reduces.clear()
            self._callback_all_reduces.clear()
        self._opening_ends_ns = None
        if links is not None:
            from slackline.nic.collectives import Sharing  # Only ranks on several hosts share.

            self._sharing = Sharing(
                self._engine,
                self._native,
                self._book,
                self._completions,
                links,
                timeout_ns=self.timeout_ns,
            )
        self.version += 1

    def shares(self, tag: int | None = None) -> tuple[tuple[int, ...] | None, str]:
        """Return each rank's weight in the division of long all_reduces with `tag`, and the reason.

        The weights are None, and the reason is empty, while every all_reduce runs the plan of
        `plan_for`.
        """
        return (None, "") if self._sharing is None else self._sharing.state(tag)

    @property
    def _agreeing(self) -> str:
        """The plan, over the first links only, of all_reduces by which ranks agree on numbers."""
        return CHAIN if self._connects_later else DIRECT

    def _timed(self, name: str, address: int, nbytes: int, dtype: DType = DType.FLOAT32) -> None:
        """Run one blocking all_reduce, in place, by the plan called `name`.

        Floats are summed, as only sums show the speed of a circuit that adds; of integers the ranks
        take the maximum.
        """
        program = self._book.program(Collective.ALL_REDUCE, name)
        op = ReduceOp.SUM if dtype is DType.FLOAT32 else ReduceOp.MAX
        count, limit = nbytes // dtype.itemsize, self.timeout_ns
        if self._opening_ends_ns is not None:
            limit = max(0, self._opening_ends_ns - time.monotonic_ns())
        native = self._native if self._star is None or name != STAR else self._star.group
        at = address, address
        request = native.run(program, *at, count, dtype, op, nbytes, -1, 0, limit, True, None, _OWN)
        if request is not None:
            self.handle(request, True)

    def _poster(self, name: str) -> Poster:
        return self._native if self._star is None or name != STAR else self._star.group

    def _planned(
        self, operation: Operation, collective: Collective, early: bool
    ) -> tuple[Poster, _native.Program]:
        if operation.kind is not Kind.ALL_REDUCE:
            return super()._planned(operation, collective, early)
        count, dtype, op = operation.elements, operation.dtype, operation.reduction
        shape = count, dtype, op, operation.rank_order
        plans = self._early_all_reduces if early else self._all_reduces
        sharing = self._sharing
        if in_callback(operation.tag):
            plans, sharing = self._callback_all_reduces, None
        known = plans.get(shape)
        if known is not None:
            return known
        if len(plans) >= _CACHED_SHAPES:
            plans.clear()
        total = count * dtype.itemsize
        shared = sharing is not None and total >= sharing.least_bytes
        longest = sharing.slice_of(total) if sharing is not None and shared else total
        chosen = self._book.all_reduce(
            longest, dtype, op, early=early, rank_order=operation.rank_order
        )
        poster = self._poster(chosen.name)
        if sharing is not None and shared:
            poster = sharing
        known = plans[shape] = poster, chosen.program
        return known

    def completion_queue(self) -> NativeCompletionQueue:
        return NativeCompletionQueue(self._engine, self._completions.pending_queues)

    def allocate(self, nbytes: int) -> int:
        address = self._engine.allocate(nbytes)
        if address == 0:
            withheld = "".join(
                f"; {show_bytes(held)} are freed but withheld, because {peer} may still write to "
                f"them: "
                "it has not noticed yet that an operation has failed"
                for peer, held in self._engine.withheld().items()
                if held
            )
            raise UsageError(
                f"the arena of {show_bytes(self._engine.arena_bytes)} has no room for "
                f"{show_bytes(nbytes)} more" + withheld
            )
        return address

    def free(self, address: int) -> None:
        if not self._engine.free(address):
            raise UsageError(f"{address:#x} is not the start of registered memory")

    def close(self, timeout: timedelta | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        self.version += 1
        self._forget_prepared()
        if os.getpid() != self._process:
            return  # In a forked child the group belongs to the parent.
        self._all_reduces.clear()
        self._early_all_reduces.clear()
        self._callback_all_reduces.clear()
        limit = self.timeout_ns if timeout is None else nanoseconds(timeout)
        begin = time.monotonic_ns()
        try:
            if self._star is not None:
                self._star.close(limit)
            if self._sharing is not None:
                self._sharing.close(max(0, limit - (time.monotonic_ns() - begin)))
            self._native.close(max(0, limit - (time.monotonic_ns() - begin)))
        except BaseException:  # such as KeyboardInterrupt: what is posted is given up
            if self._star is not None:
                self._star.close(0)
            self._native.close(0)
            raise
        finally:
            self._on_close(self)

    def release(self) -> None:
        """Forget the engine, which has been closed; only the plain facts of the group stay."""
        if not self._closed:
            return
        gone: Any = _Gone()
        self._engine = self._native = self._book = self._completions = gone
        self._connect_all = self._on_close = gone
        self._lost = self._health = self._counters = self._link_reports = gone
        self._star = self._sharing = None

    def abort(self, reason: str) -> None:
        if not self._closed and os.getpid() == self._process:
            self._native.abort(reason)
            if self._star is not None:
                self._star.abort(reason)


class _Gone:
    """A stand-in for the parts of an engine that has been closed."""

    def __getattr__(self, name: str) -> NoReturn:
        raise ClosedError("the engine is closed")

    def __call__(self, *_: object) -> NoReturn:
        raise ClosedError("the engine is closed")


_PROCESS = os.getpid()
_HOLDERS = (NativeGroup, NativeTransfer, NativeCompletionQueue)
"""The classes through which all other objects reach an engine."""


def release_native_objects() -> None:
    """Have all groups, transfers and queues of closed engines forget their native objects.

    In a forked child the native objects belong to the parent and stay.
    """
    if os.getpid() != _PROCESS:
        return
    gc.unfreeze()  # The list below has no frozen objects.
    for each in gc.get_objects():
        if type(each) in _HOLDERS:
            each.release()
