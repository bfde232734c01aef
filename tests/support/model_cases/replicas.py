"""A replica of a whole model, trained by slackline.overlap.DataParallel on its own batches."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from model_cases.cases import Case, Plan, Step
from model_cases.programs import RATE, Modules, Update, around, batch_of, loss_of, outputs_in, run
from model_cases.results import Result, found_in
from model_cases.stages import build
from slackline.overlap import DataParallel

__all__ = ["Whole", "ddp_difference", "train_replica"]

_CLOSE = 64
"""The most that a gradient of DDP may differ, in units of its type's epsilon times its largest
value. DDP divides each replica's gradients before it adds them."""


class Whole(nn.Module):
    """The stages of a case, which follow each other in one module."""

    def __init__(self, stages: Mapping[int, nn.Module]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages[index] for index in range(len(stages)))

    def forward(self, x: Tensor, **keywords: Tensor) -> Any:
        values: Any = x
        for stage in self.stages:
            values = stage(*(values if isinstance(values, tuple) else (values,)), **keywords)
        return values


def train_replica(case: Case, group: dist.ProcessGroup) -> list[Result]:
    """Run the case as one of the replicas, which are the ranks of the group; return its results."""
    trainer = _Replica(case, group)
    try:
        return run(case, trainer)
    finally:
        trainer.model.close()


def ddp_difference(case: Case, group: dist.ProcessGroup, expected: Result) -> str:
    """Return a text about the first difference between DDP's first step and `expected`, or "".

    Steps of several backward passes are left out, because DDP does not reduce the gradient of a
    parameter that only the earlier ones use; so are reentrant checkpoints, which DDP refuses.
    """
    first = case.steps[0]
    wraps = [wrap for stage in case.stages for part in stage.parts for wrap in part.wraps]
    if len(first.rows) > 1 or "reentrant" in wraps:
        return ""
    modules = build(case)
    whole = Whole(modules)
    whole.unused = nn.Parameter(torch.zeros(1))  # without one, DDP warns that it looked in vain
    model = DistributedDataParallel(whole, process_group=group, find_unused_parameters=True)
    loss_fn = loss_of(case, Update(case))
    batch = batch_of(case, 0, dist.get_rank(group), first.rows)
    with around(case):
        loss = loss_fn(model(batch.inputs, **batch.keywords(case)), batch.targets)
    loss.backward()
    for name, found in found_in(modules).items():
        wanted = expected[name]
        if not name.startswith("gradient") or (found is None and wanted is None):
            continue
        if found is None or wanted is None:
            return f"DDP has another {name}: {found}, not {wanted}"
        limit = _CLOSE * torch.finfo(wanted.dtype).eps * float(wanted.abs().max())
        if not float((found - wanted).abs().max()) <= limit:
            return f"DDP has another {name}: {found}, not {wanted}"
    return ""


class _Replica:
    """A rank's copy of a model, which DataParallel wraps."""

    def __init__(self, case: Case, group: dist.ProcessGroup) -> None:
        self._case = case
        self._replica = dist.get_rank(group)
        self.modules: Modules = build(case)
        whole = Whole(self.modules)
        self._optimizer = optim.SGD(whole.parameters(), lr=RATE)
        self.model = DataParallel(whole, self._optimizer, process_group=group)
        self._loss_fn = loss_of(case, Update(case))

    def train(self, mode: bool) -> None:
        self.model.train(mode)

    def plan(self, plan: Plan) -> None:
        """Ignore the plan: a loop without a schedule has none."""

    def update(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad()

    def zero(self, *, to_none: bool) -> None:
        self._optimizer.zero_grad(set_to_none=to_none)

    def step(self, step: Step, turn: int) -> Result:
        losses, outputs = [], []
        data = batch_of(self._case, turn, self._replica, step.rows).microbatches(self._case)
        for place, (x, keywords, y) in enumerate(data):
            with nullcontext() if place == len(data) - 1 else self.model.no_sync():
                with around(self._case):
                    output = self.model(x, **keywords)
                    loss = self._loss_fn(output, y)
                (loss / len(data)).backward()
            losses.append(loss.detach())
            outputs.append(_detached(output))
        return outputs_in(losses, outputs)

    def evaluate(self, step: Step, turn: int) -> Result:
        losses, outputs = [], []
        data = batch_of(self._case, turn, self._replica, step.rows).microbatches(self._case)
        with torch.no_grad(), around(self._case):
            for x, keywords, y in data:
                outputs.append(self.model(x, **keywords))
                losses.append(self._loss_fn(outputs[-1], y))
        return outputs_in(losses, outputs)


def _detached(output: Any) -> Any:
    if isinstance(output, tuple):
        return tuple(each.detach() for each in output)
    return output.detach()
