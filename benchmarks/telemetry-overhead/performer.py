"""The work of one rank: data-parallel training steps, timed by the clock and by the processor."""

from __future__ import annotations

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from _harness.groups import join
from _harness.ranks import Place
from cases import Cell
from torch import nn

from slackline.overlap import DataParallel

TIMEOUT = timedelta(seconds=60)
RATE = 1e-3


class Performer:
    """A rank with a slackline group and one model at a time.

    The rank's environment says whether telemetry is written.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._model: DataParallel | None = None
        join(place, TIMEOUT)

    def prepare(self, cell: Cell, warm_up: int) -> None:
        """Build the cell's model and train it for some steps."""
        self._leave()
        torch.manual_seed(0)
        parts: list[nn.Module] = []
        for _ in range(cell.layers):
            parts += [nn.Linear(cell.width, cell.width), nn.ReLU()]
        plain = nn.Sequential(*parts)
        self._optimizer = torch.optim.SGD(plain.parameters(), lr=RATE)
        self._model = DataParallel(plain, self._optimizer, group_bytes=cell.group_bytes)
        self._batch = torch.randn(cell.batch, cell.width)
        self._train(warm_up)

    def turn(self, steps: int) -> tuple[float, float]:
        """Train for some steps; return the seconds of a step: elapsed, and of the processor.

        The step before, in which the processor's caches fill again, is not measured.
        """
        self._train(1)
        dist.barrier()
        begin, used = time.perf_counter(), time.process_time()
        self._train(steps)
        elapsed, cpu = time.perf_counter() - begin, time.process_time() - used
        return elapsed / steps, cpu / steps

    def digest(self) -> float:
        """Return the sum of all parameters, equal on all ranks and for both contestants."""
        assert self._model is not None
        self._model.synchronize()
        with torch.no_grad():
            return sum(float(each.double().sum()) for each in self._model.parameters())

    def close(self) -> None:
        """Leave the process group."""
        self._leave()
        dist.destroy_process_group()

    def _train(self, steps: int) -> None:
        assert self._model is not None
        for _ in range(steps):
            self._model(self._batch).square().mean().backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
        self._model.synchronize()

    def _leave(self) -> None:
        if self._model is not None:
            self._model.close()
            self._model = None
