"""Whether an optimizer's step can be taken one parameter at a time: a pure decision."""

from dataclasses import dataclass

from torch import optim

__all__ = ["Choice", "StepFacts", "choose", "steps_alone"]

_ALONE = frozenset(
    {
        *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax"),
        *("Muon", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"),
    }
)
"""torch's optimizers whose step of one parameter looks at no other parameter."""


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """What is known when the user calls `step`."""

    alone: bool
    """The optimizer treats each parameter by itself."""
    arguments: bool
    """`step` was given a closure or anything else."""
    hooks: bool
    """Somebody has registered hooks around the step."""
    scaled: bool
    """A GradScaler has left its scale for the step to apply."""
    differentiable: bool
    """The step itself is to be differentiated."""
    reduced: bool
    """The user has already waited for every gradient, by clipping or reading them."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How the step is taken."""

    deferred: bool
    """True: each parameter takes its step when its gradient is there. False: all wait."""
    reason: str


def steps_alone(kind: type[optim.Optimizer]) -> bool:
    """Whether a class is known to treat each parameter by itself; subclasses are not known."""
    return any(kind is getattr(optim, name, None) for name in _ALONE)


def choose(facts: StepFacts) -> Choice:
    """All wait as soon as anything could tell the difference."""
    together = {
        "the optimizer may look at several parameters at once": not facts.alone,
        "the step has a closure or other arguments": facts.arguments,
        "hooks are registered around the step": facts.hooks,
        "a GradScaler scales within the step": facts.scaled,
        "the step is to be differentiated": facts.differentiable,
        "all gradients are there": facts.reduced,
    }
    for reason, holds in together.items():
        if holds:
            return Choice(deferred=False, reason=reason)
    return Choice(deferred=True, reason="each parameter steps when its gradient is there")
