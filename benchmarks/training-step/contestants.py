"""The contestants in training: a network, its optimizer, and the library that joins the ranks."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping

import torch.distributed as dist
from cases import Choice, Contestant, Method
from models import Batch, Model
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

import slackline

HAS_BATCHED_COPY = "batched_grad_copy" in inspect.signature(DistributedDataParallel).parameters
"""Whether this torch's DDP has the option to copy gradients in batches."""
_ONE_UPDATE = " and one update"
"""The end of a variant's name in the result of a trial, if the variant has one update."""


def choice_of(result: str, *, group_bytes: int, parameter_bytes: int) -> Choice:
    """Return the choice of a trial of PCCO, given the text of the trial's result.

    The text begins with the chosen variant, which ends at the first colon or comma.
    """
    variant = re.split("[:,]", result)[0]
    return Choice(
        result=result,
        group_bytes=group_bytes,
        deferred=not variant.endswith(_ONE_UPDATE),
        parameter_bytes=parameter_bytes,
    )


class Trainer:
    """A network in training without communication."""

    def __init__(self, model: Model) -> None:
        self.plain = model.build()
        """The network itself, without a wrapper, for its parameters."""
        self._net = self.plain
        self._loss = model.loss
        self._max_norm = model.max_norm
        self._optimizer = self._adamw(model)

    def step(self, batch: Batch) -> Tensor:
        """Train on `batch` by the four parts of a step. Return the loss."""
        loss = self.forward(batch)
        self.backward(loss)
        self.update()
        self.clear()
        return loss.detach()

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss of `batch`."""
        inputs, target = batch
        return self._loss(self._net(inputs), target)

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients, and clip them if the model has a norm for it."""
        loss.backward()  # type: ignore[no-untyped-call]
        if self._max_norm is not None:
            self.clip(self._max_norm)

    def update(self) -> None:
        """Take the optimizer's step."""
        self._optimizer.step()

    def clear(self) -> None:
        """Set the gradients to None."""
        self._optimizer.zero_grad()

    def clip(self, max_norm: float) -> None:
        """Clip the norm of all gradients to `max_norm`."""
        clip_grad_norm_(self.plain.parameters(), max_norm)

    def chosen(self) -> Choice | None:
        """Return the variant of a step that a trial has chosen; None while the trial lasts.

        Raises TypeError here, since only PCCO has a trial.
        """
        raise TypeError(f"{type(self).__name__} has no trial")

    def finish(self) -> None:
        """Wait until all communication of the steps so far has ended; here do nothing."""

    def close(self) -> None:
        """Release the resources that the process group holds for this trainer; here do nothing."""

    def _adamw(self, model: Model) -> AdamW:
        return AdamW(self.plain.parameters(), lr=model.learning_rate, fused=True)


class Pcco(Trainer):
    """Training by slackline.overlap, which reduces each gradient as soon as backward has computed
    it.
    """

    def __init__(
        self, model: Model, group: dist.ProcessGroup, group_bytes: int | None = None
    ) -> None:
        super().__init__(model)
        self._wrapped = slackline.overlap.DataParallel(
            self.plain, self._optimizer, process_group=group, group_bytes=group_bytes
        )
        self._net = self._wrapped

    def clip(self, max_norm: float) -> None:
        self._wrapped.clip_grad_norm_(max_norm)

    def chosen(self) -> Choice | None:
        result = self._wrapped.trial_result
        if not result:
            return None
        parameter_bytes = sum(parameter.nbytes for parameter in self.plain.parameters())
        return choice_of(
            result, group_bytes=self._wrapped.group_bytes, parameter_bytes=parameter_bytes
        )

    def finish(self) -> None:
        self._wrapped.synchronize()

    def close(self) -> None:
        self._wrapped.close()


class Ddp(Trainer):
    """Training by torch's DistributedDataParallel.

    Gradients are views of buckets, which saves a copy.
    """

    def __init__(self, model: Model, group: dist.ProcessGroup, settings: Contestant) -> None:
        super().__init__(model)
        batched = {"batched_grad_copy": True} if settings.batched_copy else {}
        self._net = DistributedDataParallel(
            self.plain,
            process_group=group,
            bucket_cap_mb=settings.bucket_mb,
            gradient_as_bucket_view=True,
            static_graph=settings.static_graph,
            **batched,
        )


class Fsdp2(Trainer):
    """Training by torch's fully_shard: each rank has a part of all parameters and their states."""

    def __init__(self, model: Model, group: dist.ProcessGroup) -> None:
        super().__init__(model)
        mesh = DeviceMesh.from_group(group, "cpu")
        for module in self.plain.modules():
            if isinstance(module, model.shard):
                fully_shard(module, mesh=mesh)
        fully_shard(self.plain, mesh=mesh)
        # Sharding has replaced the parameters, so the optimizer must be made from the shards.
        self._optimizer = self._adamw(model)


_TRAINERS: Mapping[Method, Callable[[Model, dist.ProcessGroup, Contestant], Trainer]] = {
    Method.ALONE: lambda model, group, contestant: Trainer(model),
    Method.PCCO: lambda model, group, contestant: Pcco(model, group, contestant.group_bytes),
    Method.DDP: Ddp,
    Method.FSDP2: lambda model, group, contestant: Fsdp2(model, group),
}


def make(contestant: Contestant, model: Model, group: dist.ProcessGroup) -> Trainer:
    """Make a contestant's trainer; every rank of `group` calls this in the same order."""
    return _TRAINERS[contestant.method](model, group, contestant)
