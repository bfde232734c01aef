"""The expected results of a case: one process runs the microbatches one after the other.

Every microbatch runs through all stages, its backward follows at once, and its gradients are added.
After the last microbatch the gradients are divided as the schedule divides them, then gradients of
earlier steps are added. With replicas, the process has a copy of the model for each, adds their
gradients in the order of the replicas, and divides by the number of replicas.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from model_cases.cases import Case, Plan, Step
from model_cases.programs import (
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

__all__ = ["expected_results"]


def expected_results(case: Case, replica: int = 0) -> list[Result]:
    """Return the results of the case in one process, for one of the replicas."""
    return run(case, _OneProcess(case, replica))


class _OneProcess:
    """All stages of a model in one process, with a copy for each replica."""

    def __init__(self, case: Case, replica: int) -> None:
        self._case = case
        self._replica = replica
        self._copies = [build(case) for _ in range(case.replicas)]
        self.modules: Modules = self._copies[replica]
        self._update = Update(case)
        self._loss_fn = loss_of(case, self._update)

    def train(self, mode: bool) -> None:
        for copy in self._copies:
            for module in copy.values():
                module.train(mode)

    def plan(self, plan: Plan) -> None:
        self._plan = plan

    def update(self) -> None:
        for copy in self._copies:
            self._update(copy)

    def zero(self, *, to_none: bool) -> None:
        for copy in self._copies:
            for module in copy.values():
                module.zero_grad(set_to_none=to_none)

    def step(self, step: Step, turn: int) -> Result:
        old = [self._taken(copy) for copy in self._copies]
        found = self._forwards(step, turn, training=True)
        if self._plan.scale and len(step.rows) > 1 and not self._case.wrapped:
            for copy in self._copies:
                for each in _parameters(copy):
                    if each.grad is not None:
                        each.grad.div_(len(step.rows))
        if len(self._copies) > 1:
            self._average()
        for copy, before in zip(self._copies, old, strict=True):
            for each in _parameters(copy):
                earlier = before.get(id(each))
                if earlier is not None:
                    if each.grad is not None:
                        earlier.add_(each.grad)
                    each.grad = earlier
        return found

    def evaluate(self, step: Step, turn: int) -> Result:
        with torch.no_grad():
            return self._forwards(step, turn, training=False)

    def _taken(self, copy: Modules) -> dict[int, Tensor]:
        """Take the gradients of earlier steps away and return them by the parameters' `id`.

        They stay where they are if the new gradients are neither divided nor averaged.
        """
        taken = {}
        if self._plan.scale or self._case.replicas > 1:
            for each in _parameters(copy):
                if each.requires_grad and each.grad is not None:
                    taken[id(each)] = each.grad
                    each.grad = None
        return taken

    def _forwards(self, step: Step, turn: int, *, training: bool) -> Result:
        case = self._case
        data = [
            batch_of(case, turn, replica, step.rows).microbatches(case)
            for replica in range(case.replicas)
        ]
        losses, outputs = [], []
        for place in range(len(step.rows)):
            if training and case.wrapped and place == len(step.rows) - 1:
                _copy_buffers(self._copies)  # as the wrapper does outside no_sync
            for replica, copy in enumerate(self._copies):
                x, keywords, y = data[replica][place]
                with around(case):
                    output, loss = self._forward(copy, x, keywords, y)
                if training and loss.requires_grad:
                    (loss / len(step.rows) if case.wrapped else loss).backward()
                if replica == self._replica:
                    losses.append(loss.detach())
                    outputs.append(_detached(output))
        return outputs_in(losses, outputs)

    def _forward(
        self, copy: Modules, x: Tensor, keywords: dict[str, Tensor], y: Tensor
    ) -> tuple[object, Tensor]:
        values: Any = x
        for index in range(len(copy)):
            given = values if isinstance(values, tuple) else (values,)
            for each in given if index else ():
                if each.requires_grad and not self._case.wrapped:
                    each.register_hook(_sent)
            values = copy[index](*given, **keywords)
        return values, self._loss_fn(values, y)

    def _average(self) -> None:
        """Average the gradients of the copies, which are added in the order of the replicas."""
        for same in zip(*map(_parameters, self._copies), strict=True):
            gradients = [each.grad for each in same]
            if all(each is None for each in gradients):
                continue
            total = torch.zeros_like(same[0])
            for place, gradient in enumerate(gradients):
                value = torch.zeros_like(same[0]) if gradient is None else gradient
                total = value.clone() if not place else total + value
            real = torch.view_as_real(total) if total.is_complex() else total
            real /= len(same)
            for each in same:
                each.grad = total.clone()


def _copy_buffers(copies: Sequence[Modules]) -> None:
    """Copy the buffers of the first copy of a model to the others."""
    first, *others = ([b for module in copy.values() for b in module.buffers()] for copy in copies)
    for buffers in others:
        for source, target in zip(first, buffers, strict=True):
            target.copy_(source)


def _sent(gradient: Tensor | None) -> Tensor | None:
    """Return the gradient as a message carries it from stage to stage.

    An expanded gradient, such as that of a mean, has its values once for many places in memory. A
    message has a copy for each place, and kernels add such copies in another order.
    """
    if gradient is None or gradient.layout is not torch.strided:
        return gradient
    extent = sum(
        (size - 1) * step for size, step in zip(gradient.shape, gradient.stride(), strict=True)
    )
    return gradient if extent + 1 == gradient.numel() else gradient.contiguous()


def _parameters(copy: Modules) -> list[nn.Parameter]:
    return [each for module in copy.values() for each in module.parameters()]


def _detached(output: object) -> object:
    if isinstance(output, tuple):
        return tuple(each.detach() for each in output)
    assert isinstance(output, Tensor)
    return output.detach()
