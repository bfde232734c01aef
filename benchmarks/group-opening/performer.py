"""The work of one rank: opening a process group, and the first operations on it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from _harness.ranks import Place

import slackline.backend  # noqa: F401  # The backend is loaded before anything is timed.

TIMEOUT = timedelta(seconds=100)
SMALL, LARGE = 1 << 10, 1 << 18
"""The elements of float32 in the two all_reduces: 4 KiB and 1 MiB."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


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

    def __sub__(self, before: Holdings) -> Holdings:
        return Holdings(
            resident_bytes=self.resident_bytes - before.resident_bytes,
            descriptors=self.descriptors - before.descriptors,
            threads=self.threads - before.threads,
        )


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The result of one turn at one rank; times are seconds of the host's monotonic clock."""

    begun: float
    opened: float
    met: float
    """The end of the first barrier."""
    small: float
    """The end of the first all_reduce of 4 KiB."""
    large: float
    """The end of the first all_reduce of 1 MiB."""
    held: Holdings
    """The resources at the end of the turn, minus the resources before the turn."""


class Performer:
    """A rank that opens one process group after the other."""

    def __init__(self, place: Place) -> None:
        torch.set_num_threads(1)
        self._place = place
        self._store: dist.Store | None = None

    def join(self, port: int) -> None:
        """Connect to the rendezvous store on `port` of this host."""
        self._store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)

    def turn(self, backend: str, rails: str, number: int) -> Turn:
        """Open a group of `backend`, pass a barrier, and reduce 4 KiB and 1 MiB.

        `rails` are those of slackline's engine. `number` must be new for each turn. Raises
        ArithmeticError if a sum is wrong.
        """
        place, store = self._place, self._store
        assert store is not None
        os.environ["SLACKLINE_RAILS"] = rails
        buffers = [torch.full((count,), float(place.rank)) for count in (SMALL, LARGE)]
        before = Holdings.now()
        begun = time.monotonic()
        dist.init_process_group(
            backend,
            store=dist.PrefixStore(f"turn/{number}", store),
            rank=place.rank,
            world_size=place.size,
            timeout=TIMEOUT,
        )
        opened = time.monotonic()
        dist.barrier()
        met = time.monotonic()
        dist.all_reduce(buffers[0])
        small = time.monotonic()
        dist.all_reduce(buffers[1])
        large = time.monotonic()
        held = Holdings.now() - before
        wanted = place.size * (place.size - 1) / 2
        if not all(bool((buffer == wanted).all()) for buffer in buffers):
            raise ArithmeticError(f"{backend} left a wrong sum")
        dist.barrier()
        dist.destroy_process_group()
        return Turn(begun=begun, opened=opened, met=met, small=small, large=large, held=held)
