"""The work of one rank: the same timed calls through each of the compared libraries.

Both torch groups and the bare engine live in this process. The benchmark's main process calls them
in turn.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from _harness import pattern
from _harness.groups import join
from _harness.ranks import Place

import slackline.backend  # The import registers the backend "slackline".
from slackline.nic import Operation
from slackline.wire import DType, ReduceOp

TIMEOUT = timedelta(seconds=30)
IDLE_COUNT = 1 << 18
"""The elements reduced before the idle time: enough to wake every thread of the engine."""
IDLE_SETTLING_SECONDS = 1.0
"""The pause between the work and the idle time.

In this pause spinning threads go to sleep, and the last check of the links' health takes place.
"""


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A way to reduce one buffer in place, with the barrier that belongs to it."""

    buffer: torch.Tensor
    all_reduce: Callable[[], object]
    barrier: Callable[[], object]


class Performer:
    """A rank with a slackline group and, after `open_gloo`, a gloo group beside it."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._ours = join(place, TIMEOUT)
        self._engine = slackline.backend.group_of(self._ours)
        self._contestants: dict[str, Contestant] = {}

    def open_gloo(self) -> None:
        """Join the gloo process group; call this before `prepare`."""
        self._gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)

    def prepare(self, count: int, registered: bool) -> None:
        """Allocate tensors of `count` elements for all contestants; free the previous ones."""
        self._contestants.clear()
        self._contribution = pattern.contribution(self._place.rank, count)
        self._total = pattern.total(self._place.size, count)
        private = torch.empty(count)
        self._contestants["gloo"] = self._through_torch(private, self._gloo)
        self._add_ours("private", private)
        if registered:
            self._add_ours("registered", slackline.backend.empty(count))

    def turn(self, name: str, calls: int, warm_up: int, salt: int) -> float:
        """Return the seconds of one all_reduce of contestant `name`, averaged over `calls` calls.

        Raises ArithmeticError if a result is wrong.
        """
        contestant = self._contestants[name]
        pattern.fill(contestant.buffer, self._contribution, salt)
        for _ in range(warm_up):
            contestant.all_reduce()
        contestant.barrier()
        started = time.perf_counter()
        for _ in range(calls):
            contestant.all_reduce()
        seconds = time.perf_counter() - started
        # All ranks wait here, so that no check takes processor time while another rank is still
        # timed.
        contestant.barrier()
        pattern.check(contestant.buffer, self._total, self._place.size, warm_up + calls, salt)
        return seconds / calls

    def idle(self, seconds: float) -> float:
        """Return the milliseconds of processor time that this process uses in an idle second.

        Call this after the engine has worked, and before there is a gloo group.
        """
        worked = torch.ones(IDLE_COUNT)
        for _ in range(10):
            dist.all_reduce(worked, dist.ReduceOp.MAX, group=self._ours)
        dist.barrier(group=self._ours)
        time.sleep(IDLE_SETTLING_SECONDS)
        before, started = _processor_seconds(), time.perf_counter()
        time.sleep(seconds)
        return (_processor_seconds() - before) / (time.perf_counter() - started) * 1e3

    def close(self) -> None:
        """Leave both process groups."""
        self._contestants.clear()
        dist.destroy_process_group()

    def _through_torch(self, buffer: torch.Tensor, group: dist.ProcessGroup) -> Contestant:
        return Contestant(
            buffer=buffer,
            all_reduce=lambda: dist.all_reduce(buffer, group=group),
            barrier=lambda: dist.barrier(group=group),
        )

    def _add_ours(self, memory: str, buffer: torch.Tensor) -> None:
        """Add the contestants on `buffer`: through torch.distributed, and the bare engine."""
        address, count = buffer.data_ptr(), buffer.numel()
        addition = Operation.all_reduce(address, address, count, DType.FLOAT32, ReduceOp.SUM)
        prepared = self._engine.prepare(addition)
        barrier = self._engine.prepare(Operation.barrier())
        self._contestants[f"slackline {memory}"] = self._through_torch(buffer, self._ours)
        self._contestants[f"engine {memory}"] = Contestant(
            buffer=buffer,
            all_reduce=lambda: prepared.post(blocking=True),
            barrier=lambda: barrier.post(blocking=True),
        )


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
