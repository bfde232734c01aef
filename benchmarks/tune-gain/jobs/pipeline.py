"""A pipeline with a stage on each rank; its schedule and all other settings are left open."""

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage

from slackline.pipeline import Schedule

WIDTH, SAMPLES, MICROBATCHES = 256, 128, 8


def main() -> None:
    dist.init_process_group("slackline")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    parts: list[nn.Module] = []
    for _ in range(4):
        parts += [nn.Linear(WIDTH, WIDTH), nn.GELU()]
    stage = PipelineStage(nn.Sequential(*parts), rank, ranks, torch.device("cpu"))
    schedule = Schedule(stage, MICROBATCHES, nn.functional.mse_loss)
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=1e-3)
    batch, target = torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES, WIDTH)
    while True:  # slackline tune ends the job
        schedule.step(
            *((batch,) if rank == 0 else ()),
            target=target if rank == ranks - 1 else None,
            return_outputs=False,
        )
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
