"""The work of one rank: training steps of a model that sleeps for as long as it would compute."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _harness.groups import join
from _harness.ranks import Place
from cases import BACKWARD_S, FORWARD_S, LAYERS, WEIGHT_COUNT, Setup
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from slackline.overlap import DataParallel

TIMEOUT = timedelta(seconds=60)


class _Timed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: TimedLayer) -> Tensor:
        time.sleep(FORWARD_S * layer.factor)
        ctx.layer = layer
        return x + 1

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        time.sleep(BACKWARD_S * ctx.layer.factor)
        return gradient, ctx.layer.gradient, None


class TimedLayer(nn.Module):
    """A layer with one weight, which sleeps for the time that computation would take."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.weight = nn.Parameter(torch.zeros(WEIGHT_COUNT))
        self.gradient = torch.ones(WEIGHT_COUNT)

    def forward(self, x: Tensor) -> Tensor:
        return _Timed.apply(x, self.weight, self)  # type: ignore[no-any-return]


class Performer:
    """A rank with a slackline group."""

    def __init__(self, place: Place) -> None:
        join(place, TIMEOUT)

    def train(self, setup: Setup, steps: int, directory: Path) -> None:
        """Train for `steps` steps, with telemetry to the directory.

        Raises ArithmeticError unless the parameters are those that the steps leave.
        """
        model = nn.Sequential(*(TimedLayer(setup.computing) for _ in range(LAYERS)))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        x = torch.ones(1, requires_grad=True)
        dist.barrier()
        with DataParallel(
            model, optimizer, group_bytes=setup.group_bytes, telemetry=directory
        ) as wrapped:
            for _ in range(steps):
                wrapped(x).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        for name, parameter in model.named_parameters():
            if not torch.equal(parameter, torch.full_like(parameter, -steps)):
                raise ArithmeticError(f"{name} is not what {steps} steps leave")

    def close(self) -> None:
        """Leave the process group, which writes the rest of the telemetry."""
        dist.destroy_process_group()
