"""Two models of about the same size: one computes, the other sleeps instead."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from cases import BIAS_COUNT, LAYERS
from floor import Layer
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

GRADIENT_UNIT = 2.0**-3
LEARNING_RATE = 2.0**-4
PERIOD = 16


class _Timed(torch.autograd.Function):
    """A computation that sleeps for its time, and so leaves its core to other threads.

    The host thread of an accelerator may sleep in the same way.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, layer: TimedLayer) -> Tensor:
        time.sleep(layer.times.forward)
        ctx.layer = layer
        return x + 1

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        time.sleep(ctx.layer.times.backward)
        return gradient, ctx.layer.weight_gradient, ctx.layer.bias_gradient, None


class TimedLayer(nn.Module):
    """A layer with a weight and a bias, which sleeps for the time that computation would take.

    The layer's gradients are the same in every step, so the exact parameters after any number of
    SGD steps are known (see `check_timed`).
    """

    def __init__(self, times: Layer, weight_count: int, rank: int) -> None:
        super().__init__()
        self.times = times
        self.weight = nn.Parameter(torch.zeros(weight_count))
        self.bias = nn.Parameter(torch.zeros(BIAS_COUNT))
        self.weight_gradient = gradient(weight_count, rank + 1)
        self.bias_gradient = gradient(BIAS_COUNT, rank + 1)

    def forward(self, x: Tensor) -> Tensor:
        return _Timed.apply(x, self.weight, self.bias, self)  # type: ignore[no-any-return]


def gradient(count: int, factor: float) -> Tensor:
    """Return small multiples of a power of two; sums and averages over four ranks are exact."""
    return torch.arange(count).remainder_(PERIOD).float().mul_(GRADIENT_UNIT * factor)


def timed_model(layers: Sequence[Layer], weight_count: int, rank: int) -> nn.Module:
    """Return a model of layers that sleep for as long as a computation would take."""
    return nn.Sequential(*(TimedLayer(times, weight_count, rank) for times in layers))


def check_timed(model: nn.Module, steps: int, ranks: int) -> None:
    """Raise ArithmeticError unless the parameters are those after `steps` steps of averaged
    gradients.
    """
    average = (ranks + 1) / 2
    for name, parameter in model.named_parameters():
        wanted = gradient(parameter.numel(), -LEARNING_RATE * steps * average)
        if not torch.equal(parameter.detach(), wanted):
            raise ArithmeticError(f"{name} is not what {steps} steps of {ranks} ranks leave")


REAL_WIDTH, REAL_BATCH = 724, 256
"""The width and batch of real layers: 724 x 724 weights are 2 MB, as timed ones at 1 Gbit/s."""


def real_model() -> nn.Module:
    """Return a model of layers that compute, about as large as the timed one."""
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for _ in range(LAYERS):
        parts += [nn.Linear(REAL_WIDTH, REAL_WIDTH), nn.ReLU()]
    return nn.Sequential(*parts)
