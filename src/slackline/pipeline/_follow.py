"""Replanning: from the measurements of all ranks to the plan of the next step."""

import logging
from collections.abc import Sequence

from slackline.errors import UsageError
from slackline.pipeline._adapt import Adapting, Patience, decide, warm_up
from slackline.pipeline._news import News
from slackline.pipeline._policy import Policy
from slackline.pipeline._record import StepRecord
from slackline.plan.pipeline import Options, PipelinePlan, Scenario, generate, planned_waits_ps

__all__ = ["Follower", "can_follow"]

_log = logging.getLogger("slackline.pipeline")


class Follower:
    """The part of a rank that makes new pipeline plans from measurements.

    All ranks choose the same plan, since all decide from the same measurements at the same step.
    """

    def __init__(
        self,
        policy: Policy,
        plan: PipelinePlan,
        scenario: Scenario,
        news: News,
        *,
        effort: float,
        tells: bool,
    ) -> None:
        """Create a replanner that starts with `plan`, made for `scenario`.

        `news` exchanges the measurements. `effort` scales the search time of a new plan. With
        `tells`, this rank writes changes to the log.
        """
        self.plan, self.scenario = plan, scenario
        self.waits_ps: tuple[tuple[int, ...], ...] = ()
        """The planned idle time before each instruction of each rank; empty before a new plan."""
        self._policy = policy
        self._news = news
        self._effort = effort
        self._tells = tells
        self._patience = Patience()
        self._state = Adapting(
            planned=scenario, warm_up=warm_up(plan), follows_times=policy.replans == "auto"
        )

    def tell(self, record: StepRecord) -> None:
        """Send a finished step's measurements to all ranks; do not block.

        The first step is left out, since it also allocates, compiles and connects.
        """
        if record.step > 0:
            self._news.tell(record)

    def next(self) -> str:
        """Choose the plan of the next step; return the reason for a new plan, or an empty text.

        Blocks until the measurements of the step before the latest have come from all ranks.
        """
        measured = self._news.hear()
        if measured is None:
            return ""
        self._state, scenario, reason = decide(measured, self._state, self._patience)
        if scenario is None:
            return ""
        try:
            plan = generate(self._policy.replans, scenario, Options(effort=self._effort))
        except UsageError as error:
            reason = f"{reason}; but its plan does not fit, so the old one stays: {error}"
            plan = self.plan
        self._state = self._state.replanned(scenario, plan)
        changed, self.plan, self.scenario = plan != self.plan, plan, scenario
        self.waits_ps = planned_waits_ps(plan, scenario)
        if self._tells:
            _log.info("step %d: %s", measured.step + 2, reason.splitlines()[0])
        return reason if changed else ""


def can_follow(policy: Policy, placement: Sequence[int]) -> bool:
    """Return whether a policy can make new plans for a placement of stages.

    The search for plans supports only one stage on each rank, in order.
    """
    return bool(policy.replans) and tuple(placement) == tuple(range(len(placement)))
