"""The work of one rank: all_reduces of one buffer, whose results are checked."""

from __future__ import annotations

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from _harness import pattern
from _harness.groups import join
from _harness.ranks import Place

TIMEOUT = timedelta(seconds=100)


class Performer:
    """A rank with a slackline group and, after `open_gloo`, a gloo group beside it."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._groups = {"slackline": join(place, TIMEOUT)}

    def open_gloo(self) -> None:
        """Join the gloo process group."""
        self._groups["gloo"] = dist.new_group(backend="gloo", timeout=TIMEOUT)

    def reduce(self, group: str, nbytes: int, calls: int, start_ns: int) -> list[float]:
        """Return the seconds of each of `calls` all_reduces of `nbytes` bytes of float32.

        The calls begin when the monotonic clock, the same for all hosts of a lab, shows `start_ns`.
        Raises ArithmeticError if a result is wrong.
        """
        where, count = self._groups[group], nbytes // 4
        buffer, size = torch.empty(count), self._place.size
        pattern.fill(buffer, pattern.contribution(self._place.rank, count), 0)
        dist.barrier(group=where)
        time.sleep(max(0, start_ns - time.monotonic_ns()) / 1e9)
        taken = []
        for _ in range(calls):
            begin = time.perf_counter()
            dist.all_reduce(buffer, group=where)
            taken.append(time.perf_counter() - begin)
            dist.barrier(group=where)
        pattern.check(buffer, pattern.total(size, count), size, calls, 0)
        return taken

    def close(self) -> None:
        """Leave the process groups."""
        dist.destroy_process_group()
