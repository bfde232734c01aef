"""The contestants: a model and its optimizer in training, each with its own communication."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

import slackline

Build = Callable[[], tuple[nn.Module, Optimizer]]


class Contestant(Protocol):
    """A model in training, seen from the benchmark."""

    plain: nn.Module
    """The model itself, without a wrapper, for its parameters."""

    def step(self, x: Tensor) -> None:
        """Run forward, backward, and the optimizer's step."""
        ...

    def finish(self) -> None:
        """Wait until all communication that is under way has ended."""
        ...


class Alone:
    """Training without communication."""

    def __init__(self, build: Build) -> None:
        self.plain, self._optimizer = build()
        self._model: nn.Module = self.plain

    def step(self, x: Tensor) -> None:
        self._model(x).sum().backward()
        self.reduce()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def reduce(self) -> None:
        """Reduce the gradients between backward and the optimizer's step; here do nothing."""

    def finish(self) -> None:
        """Wait until all communication of the steps so far has ended; here do nothing."""


class Blocking(Alone):
    """Training that reduces one gradient after the other when backward has ended."""

    def __init__(self, build: Build, group: dist.ProcessGroup) -> None:
        super().__init__(build)
        self._group = group

    def reduce(self) -> None:
        for parameter in self.plain.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad, group=self._group)
            parameter.grad.div_(self._group.size())


class Ddp(Alone):
    """Training by torch's DistributedDataParallel, over any backend."""

    def __init__(self, build: Build, group: dist.ProcessGroup, bucket_mb: float) -> None:
        super().__init__(build)
        self._model = DistributedDataParallel(
            self.plain, process_group=group, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True
        )


class Pcco(Alone):
    """Training by slackline.overlap, which reduces each gradient as soon as backward has computed
    it.

    The next forward pass waits only for the parameters that it needs.
    """

    def __init__(self, build: Build, group: dist.ProcessGroup) -> None:
        super().__init__(build)
        self._wrapped = slackline.overlap.DataParallel(
            self.plain, self._optimizer, process_group=group, group_bytes=0
        )
        self._model = self._wrapped

    def finish(self) -> None:
        self._wrapped.synchronize()

    def close(self) -> None:
        """Remove the wrapper's hooks from the model."""
        self._wrapped.close()


def sgd(model: nn.Module, learning_rate: float) -> tuple[nn.Module, Optimizer]:
    """Return the model with an SGD optimizer of its parameters."""
    return model, torch.optim.SGD(model.parameters(), lr=learning_rate)
