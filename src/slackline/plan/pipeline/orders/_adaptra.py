"""Adaptra's two planning algorithms as published, for comparison (arXiv 2504.19232, section 5)."""

from slackline.plan.pipeline._plan import PipelinePlan
from slackline.plan.pipeline._scenario import Scenario
from slackline.plan.pipeline.orders._slack import slack_needed, slacks
from slackline.plan.pipeline.orders._zero_bubble import greedy

__all__ = ["adaptra_adapted", "adaptra_initial", "adaptra_plan"]


def adaptra_initial(stages: int, activations: int) -> tuple[int, ...]:
    """Return x, the warm-up forwards of each stage, for links that are not known to be slow.

    x_0 is the number of activations that fit in memory, and x_{S-1} is 1. The difference x_0 - 1 is
    spread over the S - 1 links as evenly as possible, so that the smallest slack is as large as it
    can be. The remainder goes to the last links, where delays hurt most.
    """
    share, rest = divmod(max(activations, 1) - 1, max(stages - 1, 1))
    x = [1]
    for place in range(stages - 1):
        x.append(x[-1] + share + (place < rest))
    return tuple(reversed(x))


def adaptra_adapted(scenario: Scenario) -> tuple[int, ...]:
    """Return x, the warm-up forwards of each stage, for slow links; memory caps are ignored.

    The values are computed from the last stage backwards, with N microbatches, S stages, and c_i
    the mean delay of link i in one direction. The slack of link i is

        D_i = min(N - 2 S, max(ceil((tF_i + tB_i + 2 c_i) / (tF_{i+1} + tB_{i+1})), 2))

    and here at least 1, since with N <= 2 S the published formula gives no slack.
    """
    count, stages = scenario.microbatches, scenario.stages
    x = [1]
    for i in reversed(range(stages - 1)):
        above = scenario.forward_ps[i] + scenario.backward_input_ps[i]
        below = scenario.forward_ps[i + 1] + scenario.backward_input_ps[i + 1]
        both = scenario.forward_delay_ps[i] + scenario.backward_delay_ps[i]
        slack = min(count - 2 * stages, max(-(-(above + both) // below), 2))
        x.append(x[-1] + max(slack, 1))
    return tuple(min(each, count) for each in reversed(x))


def adaptra_plan(scenario: Scenario) -> PipelinePlan:
    """Return Adaptra's initial plan, or the adapted plan where a link's delay exceeds its slack.

    Without a cap, the first stage has 2 S - 1 warm-up forwards for S stages, as in ZB-H2. The
    initial plan ignores delays. After the warm-up each stage prefers a ready backward for the input
    (B) to a forward (F) to a backward for the weights (W), without a limit on memory. `validate`
    says whether the plan fits.
    """
    stages = scenario.stages
    first = scenario.memory[0]
    fit = 2 * stages - 1 if first.cap is None else first.cap // first.activation
    x = adaptra_initial(stages, min(fit, scenario.microbatches))
    delays = zip(scenario.forward_delay_ps, scenario.backward_delay_ps, strict=True)
    broken = [
        slack < slack_needed(scenario, link)
        for link, (delay, slack) in enumerate(zip(delays, slacks(x), strict=True))
        if any(delay)
    ]
    known = scenario.capped([None] * stages)
    if any(broken):
        return greedy("adaptra", known, list(adaptra_adapted(scenario)))
    for link in range(stages - 1):
        known = known.delayed(link, 0)
    return greedy("adaptra", known, list(x))
