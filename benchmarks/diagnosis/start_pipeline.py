"""A pipeline whose later stages compute longer, on the hosts of a lab, for some seconds."""

import sys
import time

import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

WIDTH = 256
MICROBATCHES = 8


def main() -> None:
    """Train stages of one layer, two layers and so on for the seconds in the first argument."""
    seconds = float(sys.argv[1])
    distributed.init_process_group("slackline")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(0)
    module = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(rank + 1)])
    stage = PipelineStage(module, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    inputs = torch.randn(MICROBATCHES * 16, WIDTH)
    began_s = time.monotonic()
    stop = torch.zeros(1)
    while not stop:
        optimizer.zero_grad()
        schedule.step(
            *([inputs] if rank == 0 else []), target=inputs if rank == ranks - 1 else None
        )
        optimizer.step()
        stop.fill_(float(time.monotonic() - began_s > seconds))
        distributed.broadcast(stop, 0)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
