"""The contestants in training: a network, its optimizer, and the library that joins the ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch.distributed as dist
from cases import Contestant, Method
from models import Batch, Model
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

import slackline


class Trainer:
    """A network in training without communication."""

    def __init__(self, model: Model) -> None:
        self.plain = model.build()
        """The network itself, without a wrapper, for its parameters."""
        self._net = self.plain
        self._loss = model.loss
        self._optimizer = self._adamw(model)

    def step(self, batch: Batch) -> Tensor:
        """Train on `batch`: forward, backward and the optimizer's step. Return the loss."""
        inputs, target = batch
        loss = self._loss(self._net(inputs), target)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.detach()

    def chosen(self) -> str | None:
        """Return the groups of gradients that a trial has chosen; None while the trial lasts."""
        return ""

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

    def __init__(self, model: Model, group: dist.ProcessGroup) -> None:
        super().__init__(model)
        self._wrapped = slackline.overlap.DataParallel(
            self.plain, self._optimizer, process_group=group
        )
        self._net = self._wrapped

    def chosen(self) -> str | None:
        return self._wrapped.trial_result or None

    def finish(self) -> None:
        self._wrapped.synchronize()

    def close(self) -> None:
        self._wrapped.close()


class Ddp(Trainer):
    """Training by torch's DistributedDataParallel.

    Gradients are views of buckets, which saves a copy.
    """

    def __init__(self, model: Model, group: dist.ProcessGroup, bucket_mb: int | None) -> None:
        super().__init__(model)
        self._net = DistributedDataParallel(
            self.plain, process_group=group, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True
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


_TRAINERS: Mapping[Method, Callable[[Model, dist.ProcessGroup, int | None], Trainer]] = {
    Method.ALONE: lambda model, group, bucket_mb: Trainer(model),
    Method.PCCO: lambda model, group, bucket_mb: Pcco(model, group),
    Method.DDP: Ddp,
    Method.FSDP2: lambda model, group, bucket_mb: Fsdp2(model, group),
}


def make(contestant: Contestant, model: Model, group: dist.ProcessGroup) -> Trainer:
    """Make a contestant's trainer; every rank of `group` calls this in the same order."""
    return _TRAINERS[contestant.method](model, group, contestant.bucket_mb)
