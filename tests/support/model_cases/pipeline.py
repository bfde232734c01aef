"""A rank's stages of a case, trained by slackline.pipeline.Schedule."""

from typing import Any

import torch
from torch import Tensor, nn, optim
from torch import distributed as dist
from torch.distributed.pipelining import PipelineStage

from model_cases.cases import Case, Plan, Step
from model_cases.programs import (
    RATE,
    Batch,
    Modules,
    Update,
    around,
    batch_of,
    loss_of,
    outputs_in,
    run,
)
from model_cases.results import Result
from model_cases.stages import build
from slackline.overlap import DataParallel
from slackline.pipeline import Schedule, ScheduleConfig

__all__ = ["train_in_pipeline"]

_CPU = torch.device("cpu")
_EFFORT = 0.01
"""The effort of searches for plans, which otherwise cost more than the models."""


def train_in_pipeline(
    case: Case,
    pipeline: dist.ProcessGroup,
    *,
    replica: int = 0,
    replicas: dist.ProcessGroup | None = None,
) -> list[Result]:
    """Run the case on this rank of the group `pipeline`; return the results of its stages.

    `replicas` is the group of the ranks that have the same stages in the other replicas.
    """
    trainer = _Pipeline(case, pipeline, replica, replicas)
    try:
        return run(case, trainer)
    finally:
        trainer.close()


class _Pipeline:
    """The stages of one rank, and the schedule that trains them."""

    def __init__(
        self,
        case: Case,
        pipeline: dist.ProcessGroup,
        replica: int,
        replicas: dist.ProcessGroup | None,
    ) -> None:
        self._case = case
        self._replica = replica
        rank = dist.get_rank(pipeline)
        self._mine = [index for index, place in enumerate(case.placement) if place == rank]
        self.modules: Modules = build(case, self._mine)
        self._update = Update(case)
        self._loss_fn = loss_of(case, self._update)
        self._wrapped: list[DataParallel] = []
        self._optimizers: list[optim.Optimizer] = []
        held: Modules = self.modules
        if replicas is not None:
            held = {index: self._wrap(module, replicas) for index, module in held.items()}
        count = len(case.placement)
        self._stages = [
            PipelineStage(module, index, count, _CPU, group=pipeline)
            for index, module in held.items()
        ]
        self._schedule: Schedule | None = None

    def _wrap(self, module: nn.Module, group: dist.ProcessGroup) -> nn.Module:
        parameters = list(module.parameters())
        if not any(each.requires_grad for each in parameters):
            return module
        optimizer = optim.SGD(parameters, lr=RATE)
        wrapped = DataParallel(module, optimizer, process_group=group)
        self._optimizers.append(optimizer)
        self._wrapped.append(wrapped)
        return wrapped

    def close(self) -> None:
        """Close the schedule and the wrappers."""
        if self._schedule is not None:
            self._schedule.close()
        for each in self._wrapped:
            each.close()

    def train(self, mode: bool) -> None:
        for module in self.modules.values():
            module.train(mode)

    def plan(self, plan: Plan) -> None:
        if self._schedule is not None:
            self._schedule.close()
        self._plan = plan
        self._schedule = Schedule(
            self._stages,
            plan.microbatches,
            self._loss_fn,
            scale_grads=plan.scale,
            schedule=plan.schedule,
            memory=plan.memory,
            config=ScheduleConfig(
                policy=plan.policy,
                full_backward=plan.full,
                split_backward=plan.split,
                delegation=plan.delegation,
                plan_effort=_EFFORT,
            ),
        )

    def update(self) -> None:
        if not self._optimizers:
            self._update(self.modules)
        for optimizer in self._optimizers:
            self._update.step(optimizer)

    def zero(self, *, to_none: bool) -> None:
        if not self._optimizers:
            for module in self.modules.values():
                module.zero_grad(set_to_none=to_none)
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=to_none)

    def step(self, step: Step, turn: int) -> Result:
        assert self._schedule is not None
        batch = batch_of(self._case, turn, self._replica, step.rows)
        losses: list[Tensor] = []
        with around(self._case):
            if step.whole:
                found = self._schedule.step(
                    *self._inputs(batch), **self._given(batch), losses=losses
                )
                outputs = self._cut(found, step.rows)
            else:
                made = batch.microbatches(self._case)
                outputs = self._schedule.step_microbatches(
                    [x for x, _, _ in made] if 0 in self._mine else None,
                    keywords=[named for _, named, _ in made],
                    targets=[y for _, _, y in made] if self._is_last else None,
                    losses=losses,
                )
        return outputs_in(losses, outputs or ())

    def evaluate(self, step: Step, turn: int) -> Result:
        assert self._schedule is not None
        batch = batch_of(self._case, turn, self._replica, step.rows)
        losses: list[Tensor] = []
        with around(self._case):
            found = self._schedule.eval(*self._inputs(batch), **self._given(batch), losses=losses)
        return outputs_in(losses, self._cut(found, batch.rows))

    @property
    def _is_last(self) -> bool:
        return len(self._case.placement) - 1 in self._mine

    def _inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return (batch.inputs,) if 0 in self._mine else ()

    def _given(self, batch: Batch) -> dict[str, Any]:
        targets = {"target": batch.targets} if self._is_last else {}
        return batch.keywords(self._case) | targets

    def _cut(self, found: Any, rows: tuple[int, ...]) -> list[Any]:
        """Return the outputs of the microbatches, which the schedule has merged."""
        if found is None:
            return []
        if isinstance(found, Tensor):
            return list(found.split(rows))
        return list(zip(*(each.split(rows) for each in found), strict=True))
