"""The work of one rank: all_reduces, or training steps whose computations are waits."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from _harness import pattern
from _harness.groups import join
from _harness.ranks import Place
from _harness.timers import sharpen_timers, sleep_until
from cases import BUCKET_BYTES, ITEM_BYTES, PCCO, Model, TimedLayer
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.parallel import DistributedDataParallel

from slackline.overlap import DataParallel

TIMEOUT = timedelta(seconds=60)
WARM_UP = 2


class Performer:
    """A rank with a slackline group."""

    def __init__(self, place: Place) -> None:
        # Sleeps stand for computations, so they must end on time, also in threads that start later.
        sharpen_timers()
        self._place = place
        join(place, TIMEOUT)

    def all_reduces(self, nbytes: int, calls: int) -> list[tuple[int, int, int]]:
        """Return the pause before each call, the call's start and its end, after a warm-up.

        Times are in ns of CLOCK_MONOTONIC. The pause lasts from the end of the previous call to the
        barrier that all ranks pass before each call. Raises ArithmeticError if a result is wrong.
        """
        count = nbytes // ITEM_BYTES
        contribution = pattern.contribution(self._place.rank, count)
        total = pattern.total(self._place.size, count)
        buffer = torch.empty(count)
        spans: list[tuple[int, int, int]] = []
        for number in range(WARM_UP + calls):
            pattern.fill(buffer, contribution, number % 4)
            pause_ns = time.monotonic_ns() - spans[-1][2] if spans else 0
            dist.barrier()
            start_ns = time.monotonic_ns()
            dist.all_reduce(buffer)
            spans.append((pause_ns, start_ns, time.monotonic_ns()))
            pattern.check(buffer, total, self._place.size, 1, number % 4)
        return spans[WARM_UP:]

    def warm(self, nbytes: int) -> None:
        """Run all_reduces of a size, and prepare the buffer for `reduce_at`."""
        self.all_reduces(nbytes, 1)
        count = nbytes // ITEM_BYTES
        self._buffer = torch.empty(count)
        pattern.fill(self._buffer, pattern.contribution(self._place.rank, count), 0)

    def reduce_at(self, start_ns: int) -> int:
        """Run one all_reduce that begins at `start_ns` on every rank; return its end in ns.

        Raises ArithmeticError if the result is wrong, and RuntimeError if `start_ns` has passed.
        """
        if (late_ns := time.monotonic_ns() - start_ns) > 0:
            raise RuntimeError(f"the request came {late_ns / 1e6:.3g} ms after the start")
        sleep_until(start_ns)
        dist.all_reduce(self._buffer)
        ended_ns = time.monotonic_ns()
        total = pattern.total(self._place.size, self._buffer.numel())
        pattern.check(self._buffer, total, self._place.size, 1, 0)
        return ended_ns

    def train(self, model: Model, method: str, steps: int) -> list[int]:
        """Train from zero; return the end of each backward in ns of CLOCK_MONOTONIC.

        Each rank's gradients are its number plus 1. Raises ArithmeticError if the trained
        parameters are not those of the mean of all gradients.
        """
        module = nn.Sequential(*map(_Waiting, model.layers))
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        trained: nn.Module
        if method == PCCO:
            trained = DataParallel(module, optimizer, group_bytes=0)
        else:
            trained = DistributedDataParallel(module, bucket_cap_mb=BUCKET_BYTES / (1 << 20))
        factor = torch.tensor([self._place.rank + 1.0])
        ended_ns = []
        for _ in range(steps):
            trained(factor.clone().requires_grad_()).sum().backward()
            ended_ns.append(time.monotonic_ns())
            optimizer.step()
            optimizer.zero_grad()
        if isinstance(trained, DataParallel):
            trained.close()
        mean = (self._place.size + 1) / 2
        for parameter in module.parameters():
            if not torch.equal(parameter.detach(), torch.full_like(parameter, -steps * mean)):
                raise ArithmeticError(f"a parameter is {parameter[0].item()}, not {-steps * mean}")
        return ended_ns

    def close(self) -> None:
        """Leave the process group."""
        dist.destroy_process_group()


class _Waiting(nn.Module):
    """A layer that waits where a real layer computes, and passes its input on.

    The gradient of each element of its weight is the input's value.
    """

    def __init__(self, layer: TimedLayer) -> None:
        super().__init__()
        self._layer = layer
        self.weight = nn.Parameter(torch.zeros(layer.gradient_bytes // ITEM_BYTES))

    def forward(self, x: Tensor) -> Tensor:
        passed: Tensor = _Wait.apply(x, self.weight, self._layer)  # type: ignore[no-untyped-call]
        return passed


class _Wait(torch.autograd.Function):
    """An identity function of its input that waits in forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: TimedLayer) -> Tensor:
        until_ns = time.monotonic_ns() + layer.forward_ms * 1_000_000
        ctx.layer, ctx.shape = layer, weight.shape
        ctx.save_for_backward(x)
        passed = x.clone()
        sleep_until(until_ns)
        return passed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        until_ns = time.monotonic_ns() + ctx.layer.backward_ms * 1_000_000
        (x,) = ctx.saved_tensors
        of_weight = (x * gradient).expand(ctx.shape).contiguous()
        sleep_until(until_ns)
        return gradient, of_weight, None
