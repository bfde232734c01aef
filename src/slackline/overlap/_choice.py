"""A pure function that decides whether an optimizer may step its parameters one by one."""

from dataclasses import dataclass

from torch import optim

__all__ = ["Choice", "StepFacts", "choose", "steps_alone"]

_ALONE = frozenset(
    {
        *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax"),
        *("Muon", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"),
    }
)
"""The names of torch's optimizers that update each parameter independently of all others."""


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """The facts about an optimizer and its gradients when the user calls `step`."""

    alone: bool
    """True if the optimizer updates each parameter without looking at the others."""
    arguments: bool
    """True if `step` was called with a closure or another argument."""
    hooks: bool
    """True if pre- or post-hooks of the optimizer's step are registered."""
    scaled: bool
    """True if a GradScaler has left a scale that the step itself must apply."""
    differentiable: bool
    """True if the optimizer step is itself to be differentiated."""
    reduced: bool
    """True if every gradient is already reduced because the user clipped or read the gradients."""
    steps_together: bool
    """True if a trial of steps asks for an update of all parameters together."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The decision whether an optimizer step updates each parameter alone, or all together."""

    deferred: bool
    """True: each parameter is updated when its gradient is reduced. False: all are updated
    together, after all reductions."""
    reason: str
    """The reason for the choice, as a clause."""


def steps_alone(kind: type[optim.Optimizer]) -> bool:
    """Return whether an optimizer class is known to update each parameter by itself.

    Subclasses of the known classes do not count: they may look at several parameters.
    """
    return any(kind is getattr(optim, name, None) for name in _ALONE)


def choose(facts: StepFacts) -> Choice:
    """Decide whether each parameter is updated alone, or all parameters are updated together.

    Parameters are updated alone, each when its gradient is reduced, only if the program cannot
    notice the difference.
    """
    together = {
        "the optimizer may look at several parameters at once": not facts.alone,
        "the step has a closure or other arguments": facts.arguments,
        "hooks are registered around the step": facts.hooks,
        "a GradScaler scales within the step": facts.scaled,
        "the step is to be differentiated": facts.differentiable,
        "all gradients are there": facts.reduced,
        "steps were shorter so in a trial, or are tried so now": facts.steps_together,
    }
    for reason, holds in together.items():
        if holds:
            return Choice(deferred=False, reason=reason)
    return Choice(deferred=True, reason="each parameter steps when its gradient is there")
