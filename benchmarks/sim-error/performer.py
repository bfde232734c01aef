"""The work of one rank: blocking all_reduces of one size, each of them timed."""

from __future__ import annotations

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from _harness import pattern
from _harness.groups import join
from _harness.ranks import Place
from cases import ITEM_BYTES

TIMEOUT = timedelta(seconds=60)
WARM_UP = 2


class Performer:
    """A rank with a slackline group."""

    def __init__(self, place: Place) -> None:
        self._place = place
        join(place, TIMEOUT)

    def all_reduces(self, nbytes: int, calls: int) -> list[tuple[int, int]]:
        """Return the start and end of each call in ns of CLOCK_MONOTONIC, after a warm-up.

        All ranks pass a barrier before each call. Raises ArithmeticError if a result is wrong.
        """
        count = nbytes // ITEM_BYTES
        contribution = pattern.contribution(self._place.rank, count)
        total = pattern.total(self._place.size, count)
        buffer = torch.empty(count)
        spans = []
        for number in range(WARM_UP + calls):
            pattern.fill(buffer, contribution, number % 4)
            dist.barrier()
            start_ns = time.monotonic_ns()
            dist.all_reduce(buffer)
            spans.append((start_ns, time.monotonic_ns()))
            pattern.check(buffer, total, self._place.size, 1, number % 4)
        return spans[WARM_UP:]

    def close(self) -> None:
        """Leave the process group."""
        dist.destroy_process_group()
