"""The loop of a case, driven over anything that trains: a schedule, a wrapper, or one process.

The loop does the same to every trainer: actions, such as updates and new parameters, and steps. It
collects what each step leaves behind.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor, nn, optim
from torch.nn import functional

from model_cases.cases import Case, Plan, Step
from model_cases.parts import LENGTH, WIDTH, Adapter, seeded
from model_cases.results import Result, found_in
from model_cases.stages import DrawnStage, make_part

__all__ = ["ACTIONS", "Batch", "LossFunction", "Modules", "Trainer", "Update", "batch_of", "run"]

RATE = 0.05
_SCALE = 2.0**10

Modules = Mapping[int, nn.Module]
"""Stages by index."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The data of a step; the tensors of a microbatch are views of the whole batch's tensors."""

    inputs: Tensor
    numbers: Tensor
    scales: Tensor
    targets: Tensor
    rows: tuple[int, ...]

    def keywords(self, case: Case) -> dict[str, Tensor]:
        """Return the tensors that every stage is given by keyword."""
        named = {"number": self.numbers}
        return named | {"scale": self.scales} if case.keyword else named

    def microbatches(self, case: Case) -> list[tuple[Tensor, dict[str, Tensor], Tensor]]:
        """Return the input, the keyword arguments and the target of each microbatch."""
        named = {name: value.split(self.rows) for name, value in self.keywords(case).items()}
        return [
            (x, {name: values[place] for name, values in named.items()}, y)
            for place, (x, y) in enumerate(
                zip(self.inputs.split(self.rows), self.targets.split(self.rows), strict=True)
            )
        ]


def batch_of(case: Case, turn: int, replica: int, rows: tuple[int, ...]) -> Batch:
    """Return the data of a step of one replica."""
    seeded(case.seed, turn, replica, 77)
    count = sum(rows)
    numbers = torch.arange(len(rows)).repeat_interleave(torch.tensor(rows))
    return Batch(
        inputs=torch.randn(count, LENGTH, WIDTH),
        numbers=numbers,
        scales=torch.rand(count, 1, 1) + 0.5,
        targets=torch.randn(count, LENGTH, WIDTH),
        rows=rows,
    )


class Update:
    """The update of modules by plain SGD, after which their gradients are cleared."""

    def __init__(self, case: Case) -> None:
        self.scaler: torch.amp.GradScaler | None = None
        if case.scaler:
            self.scaler = torch.amp.GradScaler("cpu", init_scale=_SCALE)
            self.scaler.scale(torch.zeros(()))  # ranks without the loss must know the scale too

    def __call__(self, modules: Modules) -> None:
        trained = [
            each
            for module in modules.values()
            for each in module.parameters()
            if each.grad is not None
        ]
        if trained:
            self.step(optim.SGD(trained, lr=RATE))

    def step(self, optimizer: optim.Optimizer) -> None:
        """Take a step of an optimizer, after its gradients are divided by the scale."""
        if self.scaler is None:
            optimizer.step()
        else:
            self.scaler.step(optimizer)
            self.scaler.update()
        optimizer.zero_grad()

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss, multiplied if the case has a GradScaler."""
        return loss if self.scaler is None else self.scaler.scale(loss)


class Trainer(Protocol):
    """The stages of a model, and the way to train them."""

    modules: Modules

    def train(self, mode: bool) -> None:
        """Put the modules into training mode, or into evaluation mode."""

    def plan(self, plan: Plan) -> None:
        """Follow another plan from now on."""

    def update(self) -> None:
        """Update the parameters with their gradients, and clear these."""

    def zero(self, *, to_none: bool) -> None:
        """Clear the gradients of all parameters."""

    def step(self, step: Step, turn: int) -> Result:
        """Train on the batch of a step; return losses and outputs, if the last stage is here."""

    def evaluate(self, step: Step, turn: int) -> Result:
        """Run the forwards of a batch; return losses and outputs, if the last stage is here."""


def run(case: Case, trainer: Trainer) -> list[Result]:
    """Run the loop of the case; return the results of its evaluations and its steps."""
    results = []
    for turn, step in enumerate(case.steps):
        done = [ACTIONS[action](case, trainer, turn) for action in step.actions]
        results += [found for found in done if found is not None]
        if step.plan is not None:
            trainer.plan(step.plan)
        found = trainer.step(step, turn)
        results.append(found | found_in(trainer.modules))
    trainer.update()
    results.append(found_in(trainer.modules))
    return results


def around(case: Case) -> AbstractContextManager[Any]:
    """Return the context in which a case's steps run."""
    return torch.autocast("cpu", torch.bfloat16) if case.autocast else nullcontext()


LossFunction = Callable[[Any, Tensor], Tensor]


def _sometimes(output: Tensor, target: Tensor) -> Tensor:
    """Return a loss that gives no gradient to some microbatches, as the target says."""
    return functional.mse_loss(output if target[0, 0, 0] > 0 else output.detach(), target)


LOSSES: Mapping[str, LossFunction] = MappingProxyType(
    {
        "mean": functional.mse_loss,
        "sum": lambda output, target: (output - target).abs().sum(),
        "entropy": lambda output, target: functional.cross_entropy(
            output.flatten(0, 1), target.flatten(0, 1).argmax(-1)
        ),
        "sometimes": _sometimes,
    }
)
"""The loss functions by the names that cases use."""


def loss_of(case: Case, update: Update) -> LossFunction:
    """Return the loss function of a case, which takes the output of the last stage."""
    plain = LOSSES[case.loss]

    def loss_fn(output: Any, target: Tensor) -> Tensor:
        if case.output == "tuple":
            first, second = output
            return update.scaled(plain(first.float(), target) + second.float().mean() * 0.1)
        return update.scaled(plain(output.float(), target))

    return loss_fn


def _update(case: Case, trainer: Trainer, turn: int) -> None:
    trainer.update()


def _zero(case: Case, trainer: Trainer, turn: int) -> None:
    trainer.zero(to_none=True)


def _zero_keep(case: Case, trainer: Trainer, turn: int) -> None:
    trainer.zero(to_none=False)


def evaluated(case: Case, turn: int) -> Step:
    """Return a step with the batch of an evaluation, which the plan of the step before cuts."""
    plan = list(case.plans())[turn - 1]
    return Step(rows=tuple(2 if not place else 1 for place in range(plan.microbatches)))


def _evaluate(case: Case, trainer: Trainer, turn: int) -> Result:
    trainer.train(False)
    found = trainer.evaluate(evaluated(case, turn), 100 + turn)
    trainer.train(True)
    return found | {"": None}


def _evaluate_in_training(case: Case, trainer: Trainer, turn: int) -> Result:
    return trainer.evaluate(evaluated(case, turn), 200 + turn) | {"": None}


def _assign(case: Case, trainer: Trainer, turn: int) -> None:
    for module in trainer.modules.values():
        state = {name: value.clone() for name, value in module.state_dict().items()}
        module.load_state_dict(state, assign=True)


def _adapt(case: Case, trainer: Trainer, turn: int) -> None:
    for index, module in trainer.modules.items():
        seeded(case.seed, turn, index, 5)
        for each in list(module.modules()):
            if isinstance(each, Adapter):
                each.add()


def _unfreeze(case: Case, trainer: Trainer, turn: int) -> None:
    for module in trainer.modules.values():
        module.requires_grad_(True)


def _freeze(case: Case, trainer: Trainer, turn: int) -> None:
    """Freeze the first part of each stage."""
    for module in trainer.modules.values():
        assert isinstance(module, DrawnStage)
        for part in module.parts[:1]:
            part.requires_grad_(False)
            part.zero_grad()


def _swap(case: Case, trainer: Trainer, turn: int) -> None:
    """Put a new module in place of the last part of each stage."""
    for index, module in trainer.modules.items():
        assert isinstance(module, DrawnStage)
        if module.drawn.parts:
            seeded(case.seed, turn, index, 6)
            module.parts[-1] = make_part(module.drawn.parts[-1])


ACTIONS: Mapping[str, Callable[[Case, Trainer, int], Result | None]] = MappingProxyType(
    {
        "update": _update,
        "zero": _zero,
        "zero-keep": _zero_keep,
        "eval": _evaluate,
        "eval-in-training": _evaluate_in_training,
        "assign": _assign,
        "adapt": _adapt,
        "unfreeze": _unfreeze,
        "freeze": _freeze,
        "swap": _swap,
    }
)
"""What a loop does between its steps, by the names that cases use."""


def outputs_in(losses: Sequence[Tensor], outputs: Sequence[Any]) -> Result:
    """Return the losses and outputs of the microbatches as a result."""
    found: Result = {f"loss {place}": loss for place, loss in enumerate(losses)}
    for place, output in enumerate(outputs):
        for entry, value in enumerate(output if isinstance(output, tuple | list) else (output,)):
            found[f"output {entry} of microbatch {place}"] = value
    return found
