"""The table of policies: how strictly a plan is kept, and whether it follows the network."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from slackline.errors import UsageError
from slackline.plan.pipeline import Order, PipelinePlan

__all__ = ["POLICIES", "Policy", "policy_of"]

_UNBOUNDED = ("auto", "ready", "slack", "adaptra")
"""Schedules whose plans fill the memory there is, and so have no measure of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One row."""

    name: str
    order: Order
    replans: str
    """The schedule that is made anew when the measurements ask for it; empty: none ever."""
    about: str

    def within_plan(self, asked: str | PipelinePlan) -> bool:
        """Whether the plan's own memory is the limit where the user has set none."""
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
"""Every policy there is."""


def policy_of(name: str | None, asked: str | PipelinePlan) -> Policy:
    """The policy of that name, or the one that goes with what was asked for."""
    if name is None:
        name = asked if isinstance(asked, str) and asked in ("auto", "adaptra") else "ready"
    if name not in POLICIES:
        raise UsageError(f'there is no policy "{name}"; policies are {", ".join(POLICIES)}')
    return POLICIES[name]
