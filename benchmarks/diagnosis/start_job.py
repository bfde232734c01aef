"""A job on the hosts of a lab that trains for some seconds: DistributedDataParallel or a pipeline.

start_job.py SECONDS [data-parallel | pipeline]

All hosts of a lab share the cores of one machine, and computation on them would hide a slow rank:
the other ranks take the cores while it is stopped, and it takes them afterwards. So most of a step
is the time of an accelerator that each rank has for itself.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

WIDTH = 256
LAYERS = 8
MICROBATCHES = 8
BATCH = 32
"""The rows of a rank's batch, and of a microbatch."""
FORWARD_MS, BACKWARD_MS = 2, 4
"""The time that an accelerator takes for a layer."""
STAGE_FORWARD_MS, STAGE_BACKWARD_MS = 1, 2
"""The same in a pipeline, for a layer and a microbatch."""
QUEUE_S = 0.0015
"""The longest time for which an accelerator goes on without its host."""

_Pass = Callable[[], object]
"""The forward and the backward pass of one step."""


def main() -> None:
    """Train for the seconds in the first argument."""
    seconds, kind = float(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "data-parallel"
    distributed.init_process_group("slackline")
    torch.manual_seed(0)
    module, run = {"data-parallel": _data_parallel, "pipeline": _pipeline}[kind]()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    began_s = time.monotonic()
    stop = torch.zeros(1)
    while not stop:
        optimizer.zero_grad()
        run()
        optimizer.step()
        stop.fill_(float(time.monotonic() - began_s > seconds))
        distributed.broadcast(stop, 0)
    distributed.destroy_process_group()


class Accelerator(nn.Module):
    """The time that an accelerator takes for a layer, while the cores of its host are free."""

    def __init__(self, forward_ms: int, backward_ms: int) -> None:
        """Take so many milliseconds in each pass."""
        super().__init__()
        self._times_ms = forward_ms, backward_ms

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Taking.apply(x, *self._times_ms)


class _Taking(torch.autograd.Function):
    """The identity function; forward and backward take the given numbers of milliseconds."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward_ms: int, backward_ms: int) -> torch.Tensor:
        ctx.backward_ms = backward_ms
        _take(forward_ms)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        _take(ctx.backward_ms)
        return gradient, None, None


def _take(milliseconds: int) -> None:
    """Let time pass in kernels of 1 ms; while the process is stopped, no further one begins.

    Kernels wait in a queue, so that an accelerator goes on while its host's cores are busy a while.
    """
    left_s = milliseconds / 1e3
    while left_s > 0:
        began_s = time.monotonic()
        time.sleep(min(left_s, 0.001))
        left_s -= min(time.monotonic() - began_s, QUEUE_S)


def _data_parallel() -> tuple[nn.Module, _Pass]:
    """Return a model of 8 layers of 256 KiB each, and its passes."""
    layers = [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), Accelerator(FORWARD_MS, BACKWARD_MS))
        for _ in range(LAYERS)
    ]
    model = DistributedDataParallel(nn.Sequential(*layers))
    return model, lambda: model(torch.randn(BATCH, WIDTH)).square().mean().backward()


def _pipeline() -> tuple[nn.Module, _Pass]:
    """Return this rank's stage, which has one layer more than the stage before, and its passes."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    layers = [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), Accelerator(STAGE_FORWARD_MS, STAGE_BACKWARD_MS))
        for _ in range(rank + 1)
    ]
    module = nn.Sequential(*layers)
    stage = PipelineStage(module, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    inputs = torch.randn(MICROBATCHES * BATCH, WIDTH)
    arguments = [inputs] if rank == 0 else []
    target = inputs if rank == ranks - 1 else None
    return module, lambda: schedule.step(*arguments, target=target)


if __name__ == "__main__":
    main()
