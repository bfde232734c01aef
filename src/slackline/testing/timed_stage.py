"""A pipeline stage that sleeps where a real stage computes, so that many ranks fit on few cores.

    x ──[F: forward_ns]──> x + w          out
        ──[B: backward_input_ns]──        gradient for x
        ──[W: backward_weight_ns]──       gradient for w

The stage is ordinary autograd: the backward for the input and the backward for the weight are
separate autograd nodes below one addition. If PyTorch splits a backward pass into these two parts,
each part waits where a real stage would compute; a whole backward pass makes both waits.

Values are exact: with small integers as input and gradients, outputs and gradients are exact
integers too. A microbatch that was lost, doubled or mixed up gives other values.
"""

import time
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

__all__ = ["TimedStage", "Wait"]


@dataclass(frozen=True, slots=True)
class Wait:
    """A record of one wait; times are those of CLOCK_MONOTONIC."""

    kind: Literal["F", "B", "W"]
    start_ns: int
    due_ns: int
    end_ns: int
    """The time when the wait ended, never before `due_ns`.

    The difference is the time that the machine took to wake the thread.
    """


class TimedStage(nn.Module):
    """A stage that computes out[batch, width] = x[batch, width] + weight[width] after a wait.

    The type is float32. The backward for the input waits even where the input needs no gradient,
    since the first stage of a model passes the gradient through all its layers too. `waits` holds
    the waits in order until the owner clears the list. A wait sleeps until its start plus its
    duration, and leaves the GIL free. The computing time of forward counts as part of the wait, as
    on a device that gets its work first.
    """

    def __init__(
        self, width: int, *, forward_ns: int, backward_input_ns: int, backward_weight_ns: int
    ) -> None:
        super().__init__()
        self.lengths_ns = {"F": forward_ns, "B": backward_input_ns, "W": backward_weight_ns}
        self.weight = nn.Parameter(torch.zeros(width, dtype=torch.float32, device="cpu"))
        self.waits: list[Wait] = []

    def forward(self, x: Tensor) -> Tensor:
        """Return x + weight, [batch, width], after the time of a forward."""
        if torch.is_grad_enabled() and not x.requires_grad:
            x = x.detach().requires_grad_()
        start_ns = time.monotonic_ns()
        out = _passed(x, self, "B") + _passed(self.weight, self, "W")
        self.wait("F", start_ns)
        return out

    def wait(self, kind: Literal["F", "B", "W"], start_ns: int) -> None:
        """Block until the duration of a computation of this `kind` is over, and record the wait.

        The computation began at `start_ns`, a time of `time.monotonic_ns`.
        """
        due_ns = start_ns + self.lengths_ns[kind]
        while (left_ns := due_ns - time.monotonic_ns()) > 0:
            time.sleep(left_ns / 1e9)
        self.waits.append(Wait(kind, start_ns, due_ns, time.monotonic_ns()))


class _Passed(torch.autograd.Function):
    """An identity function whose backward waits for the duration of its kind of computation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stage: TimedStage, kind: Literal["B", "W"]) -> Tensor:
        ctx.stage, ctx.kind = stage, kind
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        ctx.stage.wait(ctx.kind, time.monotonic_ns())
        return gradient, None, None


def _passed(x: Tensor, stage: TimedStage, kind: Literal["B", "W"]) -> Tensor:
    passed: Tensor = _Passed.apply(x, stage, kind)  # type: ignore[no-untyped-call]
    return passed
