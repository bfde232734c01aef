"""Pipelines whose stages sleep where they would compute; autograd and messages are real."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from slackline.plan.pipeline import PS_PER_MS, Scenario, StageMemory
from slackline.testing.timed_stage import TimedStage


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The shape of a pipeline: one stage on each host, all stages alike."""

    stages: int
    microbatches: int
    width: int = 256
    batch: int = 4
    """The number of rows of an activation, which is batch x width of float32: 4 KiB by default."""
    time_ms: int = 10
    """The duration in ms of F, of B and of W (forward, backward for the input, for the weights)."""

    @property
    def cap(self) -> int:
        """The number of activations that a stage may hold, for contestants with a cap."""
        return 2 * self.stages

    @property
    def message_bytes(self) -> int:
        return 4 * self.width * self.batch

    def __str__(self) -> str:
        return f"S={self.stages} N={self.microbatches}"


class Data:
    """The input and target of a pipeline: integers, so that every gradient is exact.

    The loss of microbatch m is sum(out * target). The gradient of the loss is the target itself, m
    + 1. A microbatch that is lost or doubled therefore changes the weight's gradient, the sum over
    m of batch * (m+1).
    """

    def __init__(self, shape: Shape, rank: int) -> None:
        self.first, self.last = rank == 0, rank == shape.stages - 1
        count, batch = shape.microbatches, shape.batch
        self.x = torch.ones(count * batch, shape.width)
        marks = torch.arange(1, count + 1, dtype=torch.float32).repeat_interleave(batch)
        self.target = marks[:, None].expand(-1, shape.width).contiguous()
        self.gradient = batch * count * (count + 1) / 2

    def check(self, stage: TimedStage) -> None:
        """Raise ArithmeticError unless every microbatch of one step counted exactly once."""
        gradient = stage.weight.grad
        wanted = torch.full_like(stage.weight, self.gradient)
        if gradient is None or not torch.equal(gradient, wanted):
            got = "missing" if gradient is None else f"{gradient[0].item()}"
            raise ArithmeticError(f"the weight's gradient is {got}, not {self.gradient}")


def loss(out: Tensor, target: Tensor) -> Tensor:
    """Return a loss whose gradient is the target."""
    return (out * target).sum()


def stage(shape: Shape) -> TimedStage:
    """Return a stage of a pipeline of this shape."""
    each_ns = shape.time_ms * 1_000_000
    return TimedStage(
        shape.width, forward_ns=each_ns, backward_input_ns=each_ns, backward_weight_ns=each_ns
    )


def scenario(shape: Shape, delays_ms: Iterable[tuple[int, int]], cap: int | None) -> Scenario:
    """Return the planner's scenario for links with delays (link, ms) in each direction.

    The first stage sends no gradient, so its B takes no time and its W is the whole backward pass,
    as in every pipeline runtime.
    """
    each, stages = shape.time_ms * PS_PER_MS, shape.stages
    found = Scenario(
        microbatches=shape.microbatches,
        forward_ps=(each,) * stages,
        backward_input_ps=(1, *(each,) * (stages - 1)),
        backward_weight_ps=(2 * each, *(each,) * (stages - 1)),
        forward_delay_ps=(0,) * (stages - 1),
        backward_delay_ps=(0,) * (stages - 1),
        memory=(StageMemory.of_microbatches(cap, 0),) * stages,
    )
    for link, ms in delays_ms:
        found = found.delayed(link, ms * PS_PER_MS)
    return found
