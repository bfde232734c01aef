"""A fake without a network for tests of code that uses groups: ranks are threads of one process."""

import ctypes
import itertools
import queue
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Unpack

from slackline.errors import ClosedError, PeerError, UsageError
from slackline.nic import Completion, MessagePosting, Posting, Store, TagAllocator, Transfer
from slackline.testing._loopback_switch import LoopbackTransfer, Part, Post, Switch
from slackline.wire import Collective, DType, ReduceOp

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


class LoopbackGroup:
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

    def all_reduce(
        self,
        source: int,
        target: int,
        count: int,
        dtype: DType,
        op: ReduceOp,
        **how: Unpack[Posting],
    ) -> LoopbackTransfer:
        signature = (Collective.ALL_REDUCE, dtype, op, count)
        return self._post(signature, [(source, count)], [(target, count)], **how)

    def reduce_scatter(
        self,
        sources: Sequence[int],
        counts: Sequence[int],
        target: int,
        dtype: DType,
        op: ReduceOp,
        **how: Unpack[Posting],
    ) -> LoopbackTransfer:
        signature = (Collective.REDUCE_SCATTER, dtype, op, tuple(counts))
        parts = list(zip(sources, counts, strict=True))
        return self._post(signature, parts, [(target, counts[self.rank])], **how)

    def all_gather(
        self,
        source: int,
        targets: Sequence[int],
        counts: Sequence[int],
        dtype: DType,
        **how: Unpack[Posting],
    ) -> LoopbackTransfer:
        signature = (Collective.ALL_GATHER, dtype, tuple(counts))
        parts = list(zip(targets, counts, strict=True))
        return self._post(signature, [(source, counts[self.rank])], parts, **how)

    def broadcast(
        self, address: int, count: int, dtype: DType, root: int, **how: Unpack[Posting]
    ) -> LoopbackTransfer:
        signature = (Collective.BROADCAST, dtype, count, root)
        return self._post(signature, [(address, count)], [(address, count)], root=root, **how)

    def reduce(
        self,
        source: int,
        target: int,
        count: int,
        dtype: DType,
        op: ReduceOp,
        root: int,
        **how: Unpack[Posting],
    ) -> LoopbackTransfer:
        signature = (Collective.REDUCE, dtype, op, count, root)
        return self._post(signature, [(source, count)], [(target, count)], root=root, **how)

    def gather(
        self,
        source: int,
        targets: Sequence[int],
        counts: Sequence[int],
        dtype: DType,
        root: int,
        **how: Unpack[Posting],
    ) -> LoopbackTransfer:
        signature = (Collective.GATHER, dtype, tuple(counts), root)
        parts = list(zip(targets, counts, strict=True)) if self.rank == root else []
        return self._post(signature, [(source, counts[self.rank])], parts, root=root, **how)

    def scatter(
        self,
        sources: Sequence[int],
        target: int,
        counts: Sequence[int],
        dtype: DType,
        root: int,
        **how: Unpack[Posting],
    ) -> LoopbackTransfer:
        signature = (Collective.SCATTER, dtype, tuple(counts), root)
        parts = list(zip(sources, counts, strict=True)) if self.rank == root else []
        return self._post(signature, parts, [(target, counts[self.rank])], root=root, **how)

    def all_to_all(
        self,
        sources: Sequence[int],
        source_counts: Sequence[int],
        targets: Sequence[int],
        target_counts: Sequence[int],
        dtype: DType,
        **how: Unpack[Posting],
    ) -> LoopbackTransfer:
        incoming = list(zip(targets, target_counts, strict=True))
        outgoing = list(zip(sources, source_counts, strict=True))
        return self._post((Collective.ALL_TO_ALL, dtype), outgoing, incoming, **how)

    def barrier(self, **how: Unpack[Posting]) -> LoopbackTransfer:
        return self._post((Collective.BARRIER, DType.UINT8), [], [], **how)

    def send(
        self,
        address: int,
        count: int,
        dtype: DType,
        peer: int,
        tag: int,
        **how: Unpack[MessagePosting],
    ) -> LoopbackTransfer:
        transfer = self._transfer(f"send to rank {peer}", how.get("timeout"))
        self._switch.send(self.rank, self._peer(peer), tag, (address, count), dtype, transfer)
        return _awaited(transfer, how.get("blocking", False))

    def recv(
        self,
        address: int,
        count: int,
        dtype: DType,
        peer: int | None,
        tag: int,
        **how: Unpack[MessagePosting],
    ) -> LoopbackTransfer:
        transfer = self._transfer(f"recv from rank {peer}", how.get("timeout"))
        sender = None if peer is None else self._peer(peer)
        self._switch.recv(self.rank, sender, tag, (address, count), dtype, transfer)
        return _awaited(transfer, how.get("blocking", False))

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

    def _post(
        self,
        signature: tuple[Any, ...],
        sources: Sequence[Part],
        targets: Sequence[Part],
        *,
        root: int = 0,
        tag: int | None = None,
        priority: int = 0,
        timeout: timedelta | None = None,
        blocking: bool = False,
    ) -> LoopbackTransfer:
        name = signature[0].name.lower()
        self._peer(root)
        transfer = self._transfer(name, timeout)
        if tag is None:
            key = ("order", 0, next(self._order))
        else:
            self._tagged[tag] += 1
            key = ("tag", tag, self._tagged[tag])
        self._counters[name] += 1
        post = Post(signature=signature, sources=sources, targets=targets, transfer=transfer)
        self._switch.collective(self.rank, key, post)
        return _awaited(transfer, blocking)

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
