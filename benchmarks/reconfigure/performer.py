"""The work of one rank: changes of members, the all_reduces after them, and what they leave."""

from __future__ import annotations

import gc
import os
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
from _harness.ranks import Place
from cases import CALLS, ITEM_BYTES, Contestant
from torch import distributed as dist
from ways import TIMEOUT, WAYS, Change, Way

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_THREAD_END = timedelta(seconds=10)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One change at one rank; times are seconds of the monotonic clock, the same for all hosts."""

    begun: float
    changed: float
    first: float
    """The end of the first all_reduce."""
    warm: float
    """The end of the all_reduces before the usual ones."""
    usual: tuple[float, ...]
    """The ends of the usual all_reduces."""


@dataclass(frozen=True, kw_only=True)
class Holdings:
    """The resources that a process holds."""

    resident_bytes: int
    descriptors: int
    threads: int

    @classmethod
    def now(cls) -> Holdings:
        """Read the resources of this process from /proc."""
        resident = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(
            resident_bytes=resident * _PAGE_BYTES,
            descriptors=len(os.listdir("/proc/self/fd")),
            threads=len(os.listdir("/proc/self/task")),
        )


class Performer:
    """A rank whose default group gets other members, by one way after another."""

    def __init__(self, place: Place) -> None:
        torch.set_num_threads(1)
        # A full collection of the objects of torch takes 0.3 s, and all ranks would begin it in the
        # same change, since they make the same objects.
        gc.freeze()
        self._place = place
        self._served: dist.TCPStore | None = None
        self._way: Way | None = None

    def serve(self, address: str) -> int:
        """Open the store at which groups are opened anew, at rank 0; return its port."""
        if self._place.rank > 0:
            return 0
        self._served = dist.TCPStore(
            address, 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT
        )
        return self._served.port

    def begin(self, contestant: Contestant, address: str, port: int) -> None:
        """Make the next changes by the way of this contestant; `port` is that of the store."""

        def connect() -> dist.Store:
            return dist.TCPStore(address, port, is_master=False, timeout=TIMEOUT)

        self._way = WAYS[contestant.way](contestant.backend, self._place, connect)

    def handle(self) -> str:
        """Make this process ready for its next change; return its handle."""
        assert self._way is not None
        return self._way.handle()

    def change(
        self,
        number: int,
        members: tuple[int, ...],
        handles: tuple[str, ...],
        nbytes: int,
        warm: int,
    ) -> Turn | None:
        """Become a group of these ranks, and reduce `nbytes` bytes again and again.

        Between the first all_reduce and the usual ones there are `warm` others. Returns None if
        this rank is no member. Raises ArithmeticError if a sum is wrong.
        """
        if self._place.rank not in members:
            return None
        assert self._way is not None
        rank, count = members.index(self._place.rank), nbytes // ITEM_BYTES
        change = Change(number=number, rank=rank, handles=handles)
        buffers = [torch.full((count,), rank + 1.0) for _ in range(1 + CALLS)]
        zeros = torch.zeros(count)
        begun = time.monotonic()
        self._way.change(change)
        changed = time.monotonic()
        dist.all_reduce(buffers[0])
        first = time.monotonic()
        for _ in range(warm):
            dist.all_reduce(zeros)
        warm_end = time.monotonic()
        usual = []
        for buffer in buffers[1:]:
            dist.all_reduce(buffer)
            usual.append(time.monotonic())
        wanted = len(members) * (len(members) + 1) / 2
        if not all(bool((buffer == wanted).all()) for buffer in buffers):
            raise ArithmeticError(f"an all_reduce after the change {number} left a wrong sum")
        return Turn(begun=begun, changed=changed, first=first, warm=warm_end, usual=tuple(usual))

    def leave(self, members: tuple[int, ...]) -> None:
        """Leave the default group unless this rank is one of the members."""
        if self._place.rank not in members:
            assert self._way is not None
            self._way.leave()

    def holdings(self) -> Holdings:
        """Return the resources of this process, once the threads of a change have ended."""
        for thread in threading.enumerate():
            if thread.name == "slackline meeting":
                thread.join(_THREAD_END.total_seconds())
        gc.collect()
        return Holdings.now()
