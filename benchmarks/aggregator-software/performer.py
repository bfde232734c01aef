"""The work of one worker: all_reduces, one at a time or several at once."""

from __future__ import annotations

import time
from collections import deque
from datetime import timedelta

import torch
import torch.distributed as dist
from _harness import pattern
from _harness.groups import join
from _harness.machine import busy_seconds
from _harness.ranks import Place

TIMEOUT = timedelta(seconds=60)


class Performer:
    """A worker with a slackline group and, after `open_gloo`, a gloo group beside it."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._groups = {"slackline": join(place, TIMEOUT)}
        self._buffers: list[torch.Tensor] = []

    def open_gloo(self) -> None:
        """Join the gloo process group."""
        self._groups["gloo"] = dist.new_group(backend="gloo", timeout=TIMEOUT)

    def prepare(self, count: int, buffers: int) -> None:
        """Allocate `buffers` tensors of `count` elements; free the previous ones."""
        self._buffers = []
        self._contribution = pattern.contribution(self._place.rank, count)
        self._total = pattern.total(self._place.size, count)
        self._buffers = [torch.empty(count) for _ in range(buffers)]

    def one_at_a_time(self, group: str, calls: int, salt: int) -> list[float]:
        """Return the seconds of each of `calls` all_reduces of the first buffer.

        Raises ArithmeticError if a result is wrong.
        """
        where, buffer, taken = self._groups[group], self._buffers[0], list[float]()
        while len(taken) < calls:
            # The contents of a buffer stay exact for a limited number of calls.
            some = min(calls - len(taken), 20)
            pattern.fill(buffer, self._contribution, salt)
            for _ in range(some):
                dist.barrier(group=where)
                begin = time.perf_counter()
                dist.all_reduce(buffer, group=where)
                taken.append(time.perf_counter() - begin)
            pattern.check(buffer, self._total, self._place.size, some, salt)
        return taken

    def streamed(self, group: str, passes: int, outstanding: int, salt: int) -> tuple[float, float]:
        """Reduce every buffer `passes` times, with at most `outstanding` operations in flight.

        Returns the seconds of all operations, and the average number of cores of this machine that
        were busy meanwhile, with any work. Raises ArithmeticError if a result is wrong.
        """
        where = self._groups[group]
        for buffer in self._buffers:
            pattern.fill(buffer, self._contribution, salt)
        dist.barrier(group=where)
        begin, before = time.perf_counter(), busy_seconds()
        under_way: deque[dist.Work] = deque()
        for number in range(passes * len(self._buffers)):
            if len(under_way) == outstanding:
                under_way.popleft().wait()
            buffer = self._buffers[number % len(self._buffers)]
            work = dist.all_reduce(buffer, group=where, async_op=True)
            assert work is not None
            under_way.append(work)
        for work in under_way:
            work.wait()
        taken = time.perf_counter() - begin
        busy = (busy_seconds() - before) / taken
        dist.barrier(group=where)
        for buffer in self._buffers:
            pattern.check(buffer, self._total, self._place.size, passes, salt)
        return taken, busy

    def close(self) -> None:
        """Leave the process groups."""
        dist.destroy_process_group()
