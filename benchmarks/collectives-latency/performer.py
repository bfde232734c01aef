"""The work of one rank: the same operation through each backend, in turns."""

from __future__ import annotations

import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # it registers the backend "fake"
from _harness.groups import join
from _harness.ranks import Place
from cases import EMPTY
from operations import OPERATIONS, Operation

import slackline.backend  # noqa: F401  # the backend loads before anything is timed

TIMEOUT = timedelta(seconds=30)


class Performer:
    """A rank with a process group of each backend, and of torch's backend that moves no data."""

    def __init__(self, place: Place) -> None:
        self._groups = {
            "slackline": join(place, TIMEOUT),
            "gloo": dist.new_group(backend="gloo", timeout=TIMEOUT),
            EMPTY: dist.new_group(backend="fake", timeout=TIMEOUT),
        }
        self._place = place
        self._operation: Operation | None = None

    def prepare(self, name: str, count: int) -> None:
        """Build operation `name`, whose tensors all backends use in turn."""
        self._operation = None  # The tensors of the operation before are freed first.
        self._operation = OPERATIONS[name](self._place.rank, self._place.size, count)

    def turn(self, backend: str, calls: int, warm_up: int) -> float:
        """Return the seconds of one call, averaged over `calls` calls.

        Raises ArithmeticError if the output is wrong; the output of an empty call is not checked.
        """
        operation, group = self._operation, self._groups[backend]
        meets = self._groups["slackline"] if backend == EMPTY else group
        assert operation is not None
        operation.output.copy_(operation.start)
        for _ in range(warm_up):
            operation.call(group)
        dist.barrier(group=meets)
        started = time.perf_counter()
        for _ in range(calls):
            operation.call(group)
        seconds = time.perf_counter() - started
        # All ranks wait here, so that no check takes processor time while another rank is still
        # timed.
        dist.barrier(group=meets)
        if backend != EMPTY and not torch.equal(operation.output, operation.expected):
            raise ArithmeticError(f"{backend} left a wrong result")
        return seconds / calls

    def close(self) -> None:
        """Leave both process groups."""
        self._operation = None
        dist.destroy_process_group()
