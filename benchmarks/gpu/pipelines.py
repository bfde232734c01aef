"""The time of a pipeline's step over a link with a delay of 20 ms."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from rank import Rank
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from slackline.pipeline import Schedule, ScheduleConfig

__all__ = ["run"]

_MICROBATCHES = 8
_LAYERS = 4
_STEPS, _WARM = 5, 2


def run(rank: Rank) -> None:
    dist = rank.join(limit_s=60)
    gloo = dist.new_group(backend="gloo")
    width, rows = (32, 4) if rank.cpu else (1024, 4096)
    torch.manual_seed(rank.rank)
    part = nn.Sequential(*(nn.Linear(width, width) for _ in range(_LAYERS))).to(rank.device)
    x, y = (torch.randn(_MICROBATCHES * rows, width, device=rank.device) for _ in range(2))

    def stage(group: Any = None) -> PipelineStage:
        return PipelineStage(part, rank.rank, rank.size, rank.device, group=group)

    def timed(name: str, schedule: Any) -> None:
        times = []
        for _ in range(_WARM + _STEPS if not rank.cpu else 2):
            part.zero_grad()
            rank.synchronize()
            dist.barrier(group=gloo)
            begun = time.perf_counter()
            inputs = (x,) if rank.rank == 0 else ()
            schedule.step(*inputs, target=y if rank.rank == rank.size - 1 else None)
            rank.synchronize()
            times.append(time.perf_counter() - begun)
        median = statistics.median(times[1 if rank.cpu else _WARM :])
        rank.note(
            f"pipeline step, {name}", ms=round(median * 1e3, 2), first_ms=round(times[0] * 1e3, 1)
        )

    loss = nn.functional.mse_loss
    for name, plan, delegation in (
        ("auto", "auto", "auto"),
        ("1F1B, sent by the engine", "1f1b", "always"),
        ("1F1B, sent by the computing thread", "1f1b", "never"),
    ):
        config = ScheduleConfig(delegation=delegation)
        ours = Schedule(stage(), _MICROBATCHES, loss, schedule=plan, config=config)
        timed(name, ours)
        ours.close()
    timed("torch's 1F1B over slackline", Schedule1F1B(stage(), _MICROBATCHES, loss))
    timed(
        "torch's 1F1B over gloo, whose link has no delay",
        Schedule1F1B(stage(gloo), _MICROBATCHES, loss),
    )
    dist.barrier(group=gloo)
    dist.destroy_process_group()
