r"""Slack: how much delay a link may have before the stages around it wait for it.

x_i is how many forwards stage i runs before its first backward, D_i = x_i - x_{i+1} the slack of
link i. Between sending the m-th activation over link i and needing its gradient, stage i runs D_i
further pairs of F and B beyond what stage i + 1 has in flight, so stage i + 1 has D_i pairs to do
while a message goes down, is worked on and comes back:

    stage i      F_m ............................................ B_m
                   \ c_i                                         / c_i
    stage i+1       ... D_i pairs of F and B: D_i (tF + tB) ....

The trip is paid out of the slack as long as

    tF_i + tB_i + 2 c_i  <=  D_i (tF_{i+1} + tB_{i+1})                                          (1)

with 2 c_i the delays of both directions together. If it is not, every group of D_i + 1 forwards
and D_i + 1 backwards is pushed back, and the next with it: the domino. W's fill holes.
Source: Adaptra, arXiv 2504.19232, section 4.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from slackline.errors import UsageError
from slackline.plan.pipeline._bound import trips
from slackline.plan.pipeline._list import KINDS, Knobs, Work, list_schedule
from slackline.plan.pipeline._plan import PipelinePlan, plan_of_orders
from slackline.plan.pipeline._scenario import Scenario

__all__ = [
    "LinkSlack",
    "expected_extra_ps",
    "link_slacks",
    "quotas",
    "slack_needed",
    "slack_plan",
    "slacks",
    "tolerance_ps",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSlack:
    """A link under a plan."""

    link: int
    slack: int
    tolerance_ps: int
    """The largest delay of one direction, both alike, for which (1) holds; negative: none does."""
    delay_ps: int
    """What it has, on average of both directions."""
    extra_ps: int
    """What that is expected to add to the iteration."""

    @property
    def broken(self) -> bool:
        """Whether the delay is more than the slack absorbs."""
        return self.delay_ps > self.tolerance_ps


def slacks(warm_up: Sequence[int]) -> tuple[int, ...]:
    """D of each link from x of each stage; x must not grow."""
    for stage, (above, below) in enumerate(itertools.pairwise(warm_up)):
        if below > above:
            raise UsageError(
                f"stage {stage + 1} cannot run {below} forwards before its first backward when "
                f"stage {stage} runs {above}"
            )
    return tuple(above - below for above, below in itertools.pairwise(warm_up))


def tolerance_ps(scenario: Scenario, link: int, slack: int) -> int:
    """The largest delay of one direction, both alike, for which (1) holds.

    Solved for c_i: (D_i (tF_{i+1} + tB_{i+1}) - tF_i - tB_i) / 2; with equal times (D_i - 1) t.
    """
    above = scenario.forward_ps[link] + scenario.backward_input_ps[link]
    below = scenario.forward_ps[link + 1] + scenario.backward_input_ps[link + 1]
    return (slack * below - above) // 2


def slack_needed(scenario: Scenario, link: int) -> int:
    """The smallest D_i for which (1) holds with the link's delays: at least 1."""
    above = scenario.forward_ps[link] + scenario.backward_input_ps[link]
    below = scenario.forward_ps[link + 1] + scenario.backward_input_ps[link + 1]
    both = scenario.forward_delay_ps[link] + scenario.backward_delay_ps[link]
    return max(1, -(-(above + both) // below))


def expected_extra_ps(scenario: Scenario, link: int, slack: int) -> int:
    """By about how much the link's delay c lengthens the iteration.

    Within the tolerance: c, once, since the first activation comes that much later. Beyond it: the
    iteration has N / (D + 1) groups of D + 1 forwards and backwards, and each is pushed back by a
    delay of the order of c, so N c / (D + 1) in all (equal times; the paper's theorem). W's that
    were put off fill some of it, so the true figure is often less.
    """
    delay = _mean_delay_ps(scenario, link)
    if delay <= tolerance_ps(scenario, link, slack):
        return delay
    return max(delay, scenario.microbatches * delay // (slack + 1))


def link_slacks(scenario: Scenario, warm_up: Sequence[int]) -> tuple[LinkSlack, ...]:
    """Every link under a plan with this warm-up."""
    if len(warm_up) != scenario.stages:
        raise UsageError(f"{scenario.stages} stages need as many x, not {len(warm_up)}")
    return tuple(
        LinkSlack(
            link=link,
            slack=slack,
            tolerance_ps=tolerance_ps(scenario, link, slack),
            delay_ps=_mean_delay_ps(scenario, link),
            extra_ps=expected_extra_ps(scenario, link, slack),
        )
        for link, slack in enumerate(slacks(warm_up))
    )


def quotas(scenario: Scenario) -> tuple[int, ...]:
    """X of each stage: what (1) asks for, or the memory's limit.

    From the last stage backwards x_i = x_{i+1} + the slack needed, and at least 1 + trip / cycle:
    by Little's law as many microbatches are between F and B as start while one is under way, when
    one starts every cycle, the longest tF + tB + tW of all stages; one more, since exactly that
    many leave no room for any wait. Never more than N, or than the activations that the cap holds.
    """
    known = trips(scenario)
    cycle = max(
        map(
            sum,
            zip(
                scenario.forward_ps,
                scenario.backward_input_ps,
                scenario.backward_weight_ps,
                strict=True,
            ),
        )
    )
    wanted, found = 1, []
    for i in reversed(range(scenario.stages)):
        if i < scenario.stages - 1:
            wanted += slack_needed(scenario, i)
        whole = known.trip_ps[i] + scenario.forward_ps[i] + scenario.backward_input_ps[i]
        wanted = max(wanted, 1 + -(-whole // cycle))
        memory = scenario.memory[i]
        limit = scenario.microbatches
        if memory.cap is not None:
            limit = min(limit, memory.cap // memory.activation)
        found.append(min(wanted, limit))
    return tuple(reversed(found))


def slack_plan(scenario: Scenario) -> PipelinePlan:
    """Never more between F and B than the quotas; within them whatever is ready, B, F, W."""
    knobs = Knobs.with_in_flight(quotas(scenario))
    _, orders = list_schedule(Work.of(scenario), knobs)
    return plan_of_orders("slack", [[KINDS[code] for code in order] for order in orders])


def _mean_delay_ps(scenario: Scenario, link: int) -> int:
    return (scenario.forward_delay_ps[link] + scenario.backward_delay_ps[link] + 1) // 2
