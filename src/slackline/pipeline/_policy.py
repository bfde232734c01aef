"""The table of pipeline policies.

A policy says how strictly the order of a plan is kept, and whether a new plan is made when the
network changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from slackline.errors import UsageError
from slackline.plan.pipeline import Order, PipelinePlan

__all__ = ["POLICIES", "Policy", "policy_of"]

_UNBOUNDED = ("auto", "ready", "slack", "adaptra")
"""The schedules whose plans use all permitted memory, and so imply no memory limit themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A pipeline policy: how strictly a plan's order is kept, and whether plans are remade."""

    name: str
    order: Order
    replans: str
    """The schedule that makes a new plan when measurements require one; empty if none does."""
    about: str

    def within_plan(self, asked: str | PipelinePlan) -> bool:
        """Return whether the plan's own peak of activations is the limit if the user gives none."""
        return self.order == "ready" and asked not in _UNBOUNDED


_ROWS = (
    Policy(
        name="fixed",
        order="fixed",
        replans="",
        about="the plan's order, as torch runs it: each instruction waits for its turn",
    ),
    Policy(
        name="ready",
        order="ready",
        replans="",
        about="whatever is ready, B before F before W, within the memory",
    ),
    Policy(
        name="adaptra",
        order="fixed",
        replans="adaptra",
        about="a fixed order within a step; a new one when a link's delay breaks the slack",
    ),
    Policy(
        name="auto",
        order="planned",
        replans="auto",
        about="the plan's next where it can start, else what is ready; a new plan when the "
        "measurements ask for it",
    ),
)

POLICIES: Mapping[str, Policy] = MappingProxyType({row.name: row for row in _ROWS})
"""The policies by name."""


def policy_of(name: str | None, asked: str | PipelinePlan) -> Policy:
    """Return the policy called `name`; None chooses the policy that fits the schedule `asked`.

    Raises UsageError for an unknown name.
    """
    if name is None:
        name = asked if isinstance(asked, str) and asked in ("auto", "adaptra") else "ready"
    if name not in POLICIES:
        raise UsageError(f'there is no policy "{name}"; policies are {", ".join(POLICIES)}')
    return POLICIES[name]
