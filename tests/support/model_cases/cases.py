"""A case: the description of a drawn model and of its training loop, which prints itself.

The text of a case is Python: `read_case(repr(case))` gives the same case.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

__all__ = ["Case", "Part", "Plan", "Stage", "Step", "read_case"]


class _Short:
    """A dataclass whose text leaves out the fields that have their usual values."""

    def __repr__(self) -> str:
        assert is_dataclass(self)
        shown = [
            f"{each.name}={value!r}"
            for each in fields(self)
            if (value := getattr(self, each.name)) != each.default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, kw_only=True, repr=False)
class Part(_Short):
    """A part of a stage."""

    kind: str
    """A name of model_cases.parts.PARTS."""
    wraps: tuple[str, ...] = ()
    """The names of model_cases.wraps.WRAPS around the part, the innermost first."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Stage(_Short):
    """A stage of a model: its parts, and the tensors that it sends to the next stage."""

    parts: tuple[Part, ...] = ()
    sends: tuple[str, ...] = ("hidden",)
    """The names of model_cases.stages.STREAMS; the last stage sends the model's outputs instead."""
    frozen: bool = False
    gate: str = ""
    """When the whole stage passes its input on: "", "number" (every second microbatch), "data"."""
    ignores: bool = False
    """Whether the stage computes from a parameter of its own, and not from its input."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(_Short):
    """The arguments of a schedule."""

    schedule: str
    microbatches: int
    policy: str | None = None
    memory: int | None = None
    split: bool | None = None
    full: bool = False
    delegation: str | None = None
    scale: bool = True


@dataclass(frozen=True, kw_only=True, repr=False)
class Step(_Short):
    """A training step, and what the loop does before it."""

    rows: tuple[int, ...]
    """The rows of each microbatch."""
    whole: bool = True
    """Whether the schedule cuts a whole batch, and is not given microbatches."""
    actions: tuple[str, ...] = ()
    """The names of model_cases.programs.ACTIONS, which run before the step."""
    plan: Plan | None = None
    """The arguments of a new schedule, which takes the place of the earlier one."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Case(_Short):
    """A model cut into stages, and its training loop."""

    seed: int
    ranks: int
    placement: tuple[int, ...]
    """The rank of each stage."""
    stages: tuple[Stage, ...]
    steps: tuple[Step, ...]
    replicas: int = 1
    wrapped: bool = False
    """Whether slackline.overlap.DataParallel trains the whole model, without a schedule."""
    loss: str = "mean"
    """A name of model_cases.programs.LOSSES."""
    output: str = "tensor"
    """The form of the last stage's output: "tensor" or "tuple"."""
    autocast: bool = False
    """Whether each step is taken within autocast."""
    scaler: bool = False
    """Whether a GradScaler scales the losses."""
    keyword: bool = False
    """Whether every stage is given a tensor by keyword, which scales the hidden tensor."""

    @property
    def size(self) -> int:
        """The number of ranks of all replicas together."""
        return self.ranks * self.replicas

    def plans(self) -> Iterator[Plan]:
        """Yield the plan of each step."""
        plan = None
        for step in self.steps:
            plan = step.plan or plan
            assert plan is not None
            yield plan

    def __str__(self) -> str:
        """Return the description over several lines, one for each stage and each step."""
        head = {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if each.name not in ("stages", "steps") and getattr(self, each.name) != each.default
        }
        shown = ", ".join(f"{name}={value!r}" for name, value in head.items())
        stages = "".join(f"        {each!r},\n" for each in self.stages)
        steps = "".join(f"        {each!r},\n" for each in self.steps)
        return f"Case(\n    {shown},\n    stages=(\n{stages}    ),\n    steps=(\n{steps}    ),\n)"


def read_case(text: str) -> Case:
    """Return the case that a text describes, which `repr` or `str` of a case has written."""
    names: dict[str, Any] = {each.__name__: each for each in (Case, Part, Plan, Stage, Step)}
    found = eval(text, {"__builtins__": {}}, names)
    assert isinstance(found, Case)
    return found
