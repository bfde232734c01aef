"""A fake without a network for tests of code that uses groups: ranks are threads of one process."""

import ctypes
import itertools
import queue
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from slackline.errors import ClosedError, PeerError, UsageError
from slackline.nic import (
    Completion,
    Introduction,
    Kind,
    Operation,
    Posts,
    Prepared,
    Store,
    TagAllocator,
    Transfer,
)
from slackline.testing._loopback_switch import LoopbackTransfer, Post, Switch

__all__ = ["LoopbackFabric", "LoopbackGroup", "LoopbackNic"]


class LoopbackQueue:
    """An implementation of slackline.nic.CompletionQueue on the callbacks of transfers."""

    def __init__(self) -> None:
        self._ended: queue.SimpleQueue[Completion] = queue.SimpleQueue()

    def add(self, transfer: Transfer, token: Any) -> None:
        def report(error: BaseException | None) -> None:
            self._ended.put(Completion(token, error, time.monotonic_ns()))

        transfer.add_done_callback(report)

    def poll(self) -> list[Completion]:
        return [self._ended.get_nowait() for _ in range(self._ended.qsize())]

    def wait(self, timeout: timedelta) -> list[Completion]:
        try:
            first = self._ended.get(timeout=timeout.total_seconds())
        except queue.Empty:
            return []
        return [first, *self.poll()]


class LoopbackFabric:
    """A set of `size` ranks joined in memory; `groups[i]` is the group of rank i's thread.

    Reductions call `slackline.testing.reference.reduce_arrays`, which combines values in rank
    order.
    """

    def __init__(self, size: int, *, timeout: timedelta = timedelta(seconds=30)) -> None:
        if size < 1:
            raise UsageError(f"a fabric must have at least one rank, not {size}")
        switch = Switch(size)
        self.groups = tuple(LoopbackGroup(switch, rank, timeout) for rank in range(size))


class LoopbackGroup(Posts):
    """An implementation of slackline.nic.Group for one rank of a LoopbackFabric."""

    rank_ordered = True

    def __init__(self, switch: Switch, rank: int, timeout: timedelta) -> None:
        self.rank = rank
        self.size = switch.size
        self.tag_allocator = TagAllocator()
        self._switch = switch
        self.timeout = timeout
        self._order = itertools.count()
        self._tagged: Counter[int] = Counter()
        self._memory: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._counters: Counter[str] = Counter()
        self._closed: str | None = None

    def prepare(self, operation: Operation, /) -> Prepared:
        self._check_open()
        return _LoopbackOperation(self, operation)

    def begin(
        self, operation: Operation, timeout: timedelta | None, blocking: bool
    ) -> LoopbackTransfer:
        """Post an operation."""
        kind, peer, dtype, counts = (
            operation.kind, operation.peer, operation.dtype, operation.counts,
        )  # fmt: skip
        if kind is Kind.SEND or kind is Kind.RECV:
            return self._message(operation, timeout, blocking)
        me, sources, targets = self.rank, operation.sources, operation.targets
        sent, received = counts, operation.target_counts or counts
        signature: tuple[Any, ...] = (kind, dtype, operation.reduction, peer, tuple(counts))
        if operation.runs is not None:
            signature = (*signature, operation.runs)
            sent = list(counts) * len(sources)
        if kind is Kind.ALL_TO_ALL:
            signature = (kind, dtype)
        elif kind in (Kind.REDUCE_SCATTER, Kind.SCATTER):
            received = [counts[me]]
            sent = counts if sources else ()
        elif kind in (Kind.ALL_GATHER, Kind.GATHER):
            sent = [counts[me]]
            received = counts if targets else ()
        if peer not in (None, me):
            if kind is Kind.SCATTER:
                sources, sent = (), ()
            elif kind is Kind.GATHER:
                targets, received = (), ()
        self._peer(peer or 0)
        transfer = self._transfer(str(kind), timeout)
        if operation.tag is None:
            key = ("order", 0, next(self._order))
        else:
            self._tagged[operation.tag] += 1
            key = ("tag", operation.tag, self._tagged[operation.tag])
        self._counters[str(kind)] += 1
        post = Post(
            signature=signature,
            sources=list(zip(sources, sent, strict=True)),
            targets=list(zip(targets, received, strict=True)),
            transfer=transfer,
        )
        self._switch.collective(self.rank, key, post)
        return _awaited(transfer, blocking)

    def _message(
        self, operation: Operation, timeout: timedelta | None, blocking: bool
    ) -> LoopbackTransfer:
        peer, tag, dtype = operation.peer, operation.tag or 0, operation.dtype
        (count,) = operation.counts
        if operation.kind is Kind.SEND:
            receiver = self._peer(-1 if peer is None else peer)
            (address,) = operation.sources
            transfer = self._transfer(f"send to rank {peer}", timeout)
            self._switch.send(self.rank, receiver, tag, (address, count), dtype, transfer)
        else:
            sender = None if peer is None else self._peer(peer)
            (address,) = operation.targets
            transfer = self._transfer(f"recv from rank {peer}", timeout)
            self._switch.recv(self.rank, sender, tag, (address, count), dtype, transfer)
        return _awaited(transfer, blocking)

    def completion_queue(self) -> LoopbackQueue:
        return LoopbackQueue()

    def allocate(self, nbytes: int) -> int:
        self._check_open()
        memory = (ctypes.c_char * (nbytes + 64))()
        address = (ctypes.addressof(memory) + 63) & ~63
        self._memory[address] = memory
        return address

    def free(self, address: int) -> None:
        if self._memory.pop(address, None) is None:
            raise UsageError(f"{address:#x} was not allocated by this group", rank=self.rank)

    def counters(self) -> Mapping[str, int]:
        return dict(self._counters) | {"allocated": len(self._memory)}

    def lost(self) -> frozenset[int]:
        return frozenset()  # Ranks are threads of this process, so none can be lost.

    def close(self, timeout: timedelta | None = None) -> None:
        if self._closed is None:
            self._closed = "closed"
            self._switch.leave(self.rank)

    def abort(self, reason: str) -> None:
        self._closed = f"aborted: {reason}"
        self._switch.fail(
            PeerError(f"rank {self.rank} has closed the group: {reason}", peer=self.rank)
        )

    def _transfer(self, what: str, timeout: timedelta | None) -> LoopbackTransfer:
        self._check_open()
        return LoopbackTransfer(what, self.rank, timeout or self.timeout)

    def _check_open(self) -> None:
        if self._closed is not None:
            raise ClosedError(f"rank {self.rank}: the group is {self._closed}", rank=self.rank)

    def _peer(self, rank: int) -> int:
        if not 0 <= rank < self.size:
            raise UsageError(f"a rank must be in 0..{self.size - 1}, not {rank}", rank=self.rank)
        return rank


class _LoopbackOperation(Prepared):
    """A prepared operation of a LoopbackGroup."""

    def __init__(self, group: LoopbackGroup, operation: Operation) -> None:
        self._group, self._operation = group, operation

    def post(
        self,
        *,
        at: int | None = None,
        priority: int | None = None,
        timeout: timedelta | None = None,
        blocking: bool = False,
    ) -> LoopbackTransfer:
        operation = self._operation
        if at is not None:
            operation = operation._replace(sources=(at,), targets=(at,))
        return self._group.begin(operation, timeout, blocking)


class LoopbackNic:
    """An implementation of slackline.nic.Nic whose ranks are threads of this process.

    All ranks share the nic, and find each other through the store.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fabrics: list[LoopbackFabric] = []
        self.closed = False

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
    ) -> LoopbackGroup:
        if self.closed:
            raise ClosedError("the nic is closed", rank=rank)
        if rank == 0:
            with self._lock:
                self._fabrics.append(LoopbackFabric(size, timeout=timeout))
                store.set("loopback", str(len(self._fabrics) - 1))
        return self._fabrics[int(store.get("loopback"))].groups[rank]

    def close(self) -> None:
        self.closed = True
        for fabric in self._fabrics:
            for group in fabric.groups:
                group.close()


def _awaited(transfer: LoopbackTransfer, blocking: bool) -> LoopbackTransfer:
    if blocking:
        transfer.wait()
    return transfer
