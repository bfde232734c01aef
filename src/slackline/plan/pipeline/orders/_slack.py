r"""The slack of links: how much delay a link may have before the stages at its ends wait.

Stage i runs x_i forwards before its first backward, and D_i = x_i - x_{i+1} is the slack of link i.
Between sending the m-th activation over link i and needing its gradient, stage i runs D_i pairs of
F and B more than stage i + 1 has in flight. Stage i + 1 therefore has D_i pairs to run while a
message goes down, is processed and comes back:

    stage i      F_m ............................................ B_m
                   \ c_i                                         / c_i
    stage i+1       ... D_i pairs of F and B: D_i (tF + tB) ....

The slack hides the round trip as long as

    tF_i + tB_i + 2 c_i  <=  D_i (tF_{i+1} + tB_{i+1})                                          (1)

with 2 c_i the delays of both directions together. Where (1) does not hold, every group of D_i + 1
forwards and D_i + 1 backwards is delayed, and so is the next group: delays cascade. W's fill some
of the idle time. Source: Adaptra, arXiv 2504.19232, section 4.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from slackline.errors import UsageError
from slackline.plan.pipeline._plan import PipelinePlan, plan_of_orders
from slackline.plan.pipeline._scenario import Scenario
from slackline.plan.pipeline.orders._bound import trips
from slackline.plan.pipeline.orders._list import KINDS, Knobs, Work, list_schedule

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
    """A link under a plan: its slack, the delay that the slack absorbs, and the actual delay."""

    link: int
    slack: int
    tolerance_ps: int
    """The largest delay, the same in both directions, that the slack absorbs; if negative, none."""
    delay_ps: int
    """The link's delay, averaged over both directions."""
    extra_ps: int
    """The time that the delay is expected to add to the iteration."""

    @property
    def broken(self) -> bool:
        """Whether the link's delay is more than its slack absorbs."""
        return self.delay_ps > self.tolerance_ps


def slacks(warm_up: Sequence[int]) -> tuple[int, ...]:
    """Return the slack of each link: the difference of the warm-up forwards of its two stages.

    Raises UsageError where a stage has more warm-up forwards than the stage before.
    """
    for stage, (above, below) in enumerate(itertools.pairwise(warm_up)):
        if below > above:
            raise UsageError(
                f"stage {stage + 1} cannot run {below} forwards before its first backward when "
                f"stage {stage} runs {above}"
            )
    return tuple(above - below for above, below in itertools.pairwise(warm_up))


def tolerance_ps(scenario: Scenario, link: int, slack: int) -> int:
    """Return the largest delay, the same in both directions of the link, that the slack absorbs.

    Solved for c_i, inequality (1) of the module gives (D_i (tF_{i+1} + tB_{i+1}) - tF_i - tB_i) /
    2; with equal times t, that is (D_i - 1) t.
    """
    above = scenario.forward_ps[link] + scenario.backward_input_ps[link]
    below = scenario.forward_ps[link + 1] + scenario.backward_input_ps[link + 1]
    return (slack * below - above) // 2


def slack_needed(scenario: Scenario, link: int) -> int:
    """Return the smallest slack, at least 1, that absorbs the link's delays by inequality (1)."""
    above = scenario.forward_ps[link] + scenario.backward_input_ps[link]
    below = scenario.forward_ps[link + 1] + scenario.backward_input_ps[link + 1]
    both = scenario.forward_delay_ps[link] + scenario.backward_delay_ps[link]
    return max(1, -(-(above + both) // below))


def expected_extra_ps(scenario: Scenario, link: int, slack: int) -> int:
    """Estimate how much the link's delay c lengthens the iteration, in picoseconds.

    Within the tolerance the extra time is c, once, since the first activation arrives c later.
    Beyond the tolerance, an iteration of N microbatches has N / (D + 1) groups of D + 1 forwards
    and backwards, with D the slack. Each group is delayed by about c, so the extra time is
    N c / (D + 1) (equal times; the paper's theorem). Postponed backwards for the weights fill some
    of the idle time, so the true figure is often less.
    """
    delay = _mean_delay_ps(scenario, link)
    if delay <= tolerance_ps(scenario, link, slack):
        return delay
    return max(delay, scenario.microbatches * delay // (slack + 1))


def link_slacks(scenario: Scenario, warm_up: Sequence[int]) -> tuple[LinkSlack, ...]:
    """Return the slack of every link under a plan with this warm-up of each stage.

    Raises UsageError where the warm-up does not have one value for each stage.
    """
    if len(warm_up) != scenario.stages:
        raise UsageError(f"{scenario.stages} stages need as many warm-ups, not {len(warm_up)}")
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
    """Return the number of microbatches in flight that each stage should allow.

    From the last stage backwards, the number x_i is x_{i+1} + the slack needed on the link, and at
    least 1 + trip / cycle. The second term is Little's law: when one microbatch starts every cycle,
    the number of microbatches between forward and backward is the number that start during one
    round trip. A cycle is the longest tF + tB + tW of all stages. The additional 1 leaves room for
    waits. x_i never exceeds the number of microbatches, nor the number of activations within the
    cap.
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
    """Return the plan of the readiness rule, with `quotas` as limits of microbatches in flight."""
    knobs = Knobs.with_in_flight(quotas(scenario))
    _, orders = list_schedule(Work.of(scenario), knobs)
    return plan_of_orders("slack", [[KINDS[code] for code in order] for order in orders])


def _mean_delay_ps(scenario: Scenario, link: int) -> int:
    return (scenario.forward_delay_ps[link] + scenario.backward_delay_ps[link] + 1) // 2
