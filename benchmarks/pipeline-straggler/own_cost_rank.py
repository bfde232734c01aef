"""The work of one rank in the part "own-cost": a pipeline whose stages do nothing."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from _harness.groups import join
from _harness.ranks import Place
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from slackline.pipeline import Schedule, ScheduleConfig

__all__ = ["Idler", "Measured"]

MICROBATCHES = 8
COMPUTATIONS = 2 * MICROBATCHES
"""The forwards and the backwards in one piece of a step."""
WARM_UP, COUNTED = 20, 10
"""The steps before the measurement, and those whose calls are counted after it."""
TIMEOUT = timedelta(minutes=2)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The figures of one computation on one rank; times are those of each step."""

    own_us: tuple[float, ...]
    """The processor time of the computing thread, less that of the same work without a pipeline."""
    process_us: tuple[float, ...]
    """The processor time of all threads of the process, less that of the same work."""
    plain_us: tuple[float, ...]
    """The processor time of the same work without a pipeline."""
    calls: float
    """The calls of Python and C functions from Python."""
    switches: float
    """The times that the computing thread gave its core away or lost it."""


class Idler:
    """A rank with one stage that passes values on."""

    def __init__(self, place: Place) -> None:
        join(place, TIMEOUT)
        first, last = place.rank == 0, place.rank == place.size - 1
        module = _Nothing()
        stage = PipelineStage(module, place.rank, place.size, torch.device("cpu"))
        config = ScheduleConfig(full_backward=True)
        self._schedule = Schedule(stage, MICROBATCHES, _mean, schedule="1f1b", config=config)
        x = torch.ones(MICROBATCHES, 1, requires_grad=True)
        pieces = x.detach().tensor_split(MICROBATCHES)

        def step() -> None:
            given = (x,) if first else ()
            self._schedule.step(*given, target=x if last else None, return_outputs=False)

        def alone() -> None:
            for each in pieces:
                out = module(each.detach().requires_grad_())
                (_mean(out, out) if last else out).backward()

        self._step: Callable[[], None] = step
        self._alone: Callable[[], None] = alone

    def measure(self, steps: int) -> Measured:
        """Run steps of the pipeline, and after each the same work without it."""
        for _ in range(WARM_UP):
            self._step()
            self._alone()
        own, process, plain, switches = [], [], [], 0
        for _ in range(steps):
            dist.barrier()
            switched = _switches()
            began, all_began = time.thread_time_ns(), time.process_time_ns()
            self._step()
            ended, all_ended = time.thread_time_ns(), time.process_time_ns()
            switches += _switches() - switched
            self._alone()
            alone_ns = time.thread_time_ns() - ended
            own.append(_us(ended - began - alone_ns))
            process.append(_us(all_ended - all_began - alone_ns))
            plain.append(_us(alone_ns))
        return Measured(
            own_us=tuple(own),
            process_us=tuple(process),
            plain_us=tuple(plain),
            calls=self._calls() / COUNTED / COMPUTATIONS,
            switches=switches / steps / COMPUTATIONS,
        )

    def close(self) -> None:
        """Leave the process group."""
        self._schedule.close()
        dist.destroy_process_group()

    def _calls(self) -> int:
        """Count the calls of some steps."""
        count = 0

        def note(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        dist.barrier()
        sys.setprofile(note)
        try:
            for _ in range(COUNTED):
                self._step()
        finally:
            sys.setprofile(None)
        return count


class _Nothing(nn.Module):
    """A stage whose forward and backward pass values on."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view_as(x)


def _mean(out: Tensor, target: Tensor) -> Tensor:
    return out.mean()


def _switches() -> int:
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return used.ru_nvcsw + used.ru_nivcsw


def _us(step_ns: int) -> float:
    return step_ns / 1e3 / COMPUTATIONS
