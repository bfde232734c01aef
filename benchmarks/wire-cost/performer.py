"""The work of one rank: all_reduces through torch.distributed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist
from _harness import pattern
from _harness.groups import join
from _harness.ranks import Place
from _harness.usage import Reading, Usage

import slackline.backend  # noqa: F401  # registers the backend "slackline"

TIMEOUT = timedelta(seconds=60)
MOST_CALLS = 100
"""The number of calls after which the values of a buffer are still exact, with up to four ranks."""
NOTHING = Usage(seconds=0.0, user_s=0.0, system_s=0.0, voluntary=0, involuntary=0, idle_s=0.0)


class Performer:
    """A rank of a group of slackline or gloo, alone in its process."""

    def __init__(self, place: Place, backend: str) -> None:
        self._place = place
        join(place, TIMEOUT, backend)

    def prepare(self, count: int) -> None:
        """Allocate tensors of up to `count` elements; free the previous ones."""
        self._buffer = self._contribution = self._total = torch.empty(0)
        self._buffer = torch.empty(count)
        self._contribution = pattern.contribution(self._place.rank, count)
        self._total = pattern.total(self._place.size, count)

    def turn(self, count: int, calls: int, salt: int) -> Usage:
        """Return the usage of one of `calls` all_reduces of `count` elements at this rank.

        The buffer is filled and checked outside the timed part. The clock and the count
        of idle time stop before the last barrier; the other counters run until no rank needs this
        rank. Raises ArithmeticError if a result is wrong.
        """
        buffer, left, total = self._buffer[:count], calls, NOTHING
        while left > 0:
            some = min(left, MOST_CALLS)
            pattern.fill(buffer, self._contribution[:count], salt)
            total += self._block(buffer, some)
            pattern.check(buffer, self._total[:count], self._place.size, some, salt)
            left -= some
        return total.over(calls)

    def close(self) -> None:
        """Leave the process group."""
        dist.destroy_process_group()

    def _block(self, buffer: torch.Tensor, calls: int) -> Usage:
        dist.barrier()
        before = Reading.now()
        for _ in range(calls):
            dist.all_reduce(buffer)
        done = Reading.now()
        dist.barrier()
        used, timed = Reading.now().since(before, 1), done.since(before, 1)
        return replace(used, seconds=timed.seconds, idle_s=timed.idle_s)
