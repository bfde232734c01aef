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
    """A model in training."""

    plain: nn.Module
    """The model itself, for its parameters."""

    def step(self, x: Tensor) -> None:
        """Forward, backward, and the optimizer's step."""
        ...

    def finish(self) -> None:
        """Wait for everything that is under way."""
        ...


class Alone:
    """No communication."""

    def __init__(self, build: Build) -> None:
        self.plain, self._optimizer = build()
        self._model: nn.Module = self.plain

    def step(self, x: Tensor) -> None:
        self._model(x).sum().backward()
        self.reduce()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def reduce(self) -> None:
        """Reduce the gradients between backward and step."""

    def finish(self) -> None:
        """Wait for everything that the steps so far have left under way."""


class Blocking(Alone):
    """Reduces one gradient after the other when backward has ended."""

    def __init__(self, build: Build, group: dist.ProcessGroup) -> None:
        super().__init__(build)
        self._group = group

    def reduce(self) -> None:
        for parameter in self.plain.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad, group=self._group)
            parameter.grad.div_(self._group.size())


class Ddp(Alone):
    """torch's own, over any backend."""

    def __init__(self, build: Build, group: dist.ProcessGroup, bucket_mb: float) -> None:
        super().__init__(build)
        self._model = DistributedDataParallel(
            self.plain, process_group=group, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True
        )


class Pcco(Alone):
    """slackline.overlap: each gradient by itself, and the next forward waits for what it needs."""

    def __init__(self, build: Build, group: dist.ProcessGroup) -> None:
        super().__init__(build)
        self._wrapped = slackline.overlap.DataParallel(
            self.plain, self._optimizer, process_group=group, group_bytes=0
        )
        self._model = self._wrapped

    def finish(self) -> None:
        self._wrapped.synchronize()

    def close(self) -> None:
        """Make the model plain again."""
        self._wrapped.close()


def sgd(model: nn.Module, learning_rate: float) -> tuple[nn.Module, Optimizer]:
    """Return the model and an SGD optimizer of its parameters."""
    return model, torch.optim.SGD(model.parameters(), lr=learning_rate)
