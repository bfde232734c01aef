"""Tests of stages on a CUDA device: activations pass through pinned memory, and results are
bit-identical to the results of one process."""

import pytest
import torch
from pipeline_work import WIDTH, part
from torch import nn
from torch.distributed.pipelining import PipelineStage

from slackline.pipeline import Schedule, ScheduleConfig

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.device_count(), reason="no CUDA device"),
]


def on_the_device(rank, size):
    device = torch.device("cuda", 0)
    mine = part(rank).to(device)
    stage = PipelineStage(mine, rank, size, device)
    for delegation in ("always", "never", "auto"):
        schedule = Schedule(
            stage,
            6,
            nn.functional.mse_loss,
            schedule="zb-h1",
            config=ScheduleConfig(delegation=delegation),
        )
        for turn in range(4):
            generator = torch.Generator().manual_seed(turn)
            x, y = (torch.randn(12, WIDTH, generator=generator).to(device) for _ in range(2))
            mine.zero_grad()
            schedule.step(*((x,) if rank == 0 else ()), target=y if rank == size - 1 else None)
            parts = [part(index).to(device) for index in range(size)]
            for a, b in zip(x.tensor_split(6), y.tensor_split(6), strict=True):
                nn.functional.mse_loss(nn.Sequential(*parts)(a), b).backward()
            for got, wanted in zip(mine.parameters(), parts[rank].parameters(), strict=True):
                assert torch.equal(got.grad, wanted.grad.div_(6))
        record = schedule.records[-1]
        # Times on the device count from the beginning of the step, as all others do.
        assert all(0 <= span.start_ns <= span.end_ns for span in record.spans)


def test_stages_on_a_device_give_the_gradients_of_one_process(job):
    job(2, on_the_device)
