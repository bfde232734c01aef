"""A job on the hosts of a lab that trains for some seconds: DistributedDataParallel or a pipeline.

start_job.py SECONDS [data-parallel | pipeline]
"""

import sys
import time
from collections.abc import Callable

import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

WIDTH = 256
LAYERS = 8
MICROBATCHES = 8
BATCH = 256
"""The rows of a rank's batch. Their computation is a large part of a step, so that a rank that
computes slowly costs time."""

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


def _data_parallel() -> tuple[nn.Module, _Pass]:
    """Return a model of 8 layers of 256 KiB each, and its passes."""
    model = DistributedDataParallel(
        nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    )
    return model, lambda: model(torch.randn(BATCH, WIDTH)).square().mean().backward()


def _pipeline() -> tuple[nn.Module, _Pass]:
    """Return this rank's stage, which has one layer more than the stage before, and its passes."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    module = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(rank + 1)])
    stage = PipelineStage(module, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    inputs = torch.randn(MICROBATCHES * 16, WIDTH)
    arguments = [inputs] if rank == 0 else []
    target = inputs if rank == ranks - 1 else None
    return module, lambda: schedule.step(*arguments, target=target)


if __name__ == "__main__":
    main()
