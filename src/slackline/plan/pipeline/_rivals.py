"""The plans that are worth a trial on a running pipeline, chosen by their predicted times.

A backward in one piece (BW) often takes less time than a backward for the inputs (B) and a backward
for the weights (W), because the weights' gradients share work. A plan with B and W apart has less
idle time instead. Which plan is faster also depends on what a prediction does not know: ranks that
share cores fill each other's idle time. So the plans whose predictions are close are tried.
"""

from collections.abc import Sequence
from dataclasses import replace

from slackline.errors import UsageError
from slackline.plan.pipeline._instruction import Kind
from slackline.plan.pipeline._plan import PipelinePlan, one_each
from slackline.plan.pipeline._replay import replay
from slackline.plan.pipeline._scenario import Scenario
from slackline.plan.pipeline._table import Options, generate
from slackline.plan.pipeline._validate import check
from slackline.plan.pipeline.formats import PlanUpdate
from slackline.plan.pipeline.orders import one_f_one_b, zb_h1

__all__ = ["in_one_piece", "rivals"]

_ERROR = 1.03
"""The ratio of two predictions up to which the shorter one may be the slower plan.

Measured iterations exceed the simulator's by similar factors, 1.05 to 1.08 for different orders.
"""


def in_one_piece(plan: PipelinePlan) -> PipelinePlan:
    """Return a plan whose backwards run in one piece, in the place of the plan's Bs.

    The result is valid wherever `plan` is: an activation is freed no later than before.
    """
    return replace(
        plan,
        name=f"{plan.name} with BW",
        programs=tuple(
            tuple(
                replace(each, kind=Kind.BW) if each.kind is Kind.B else each
                for each in program
                if each.kind is not Kind.W
            )
            for program in plan.programs
        ),
    )


def rivals(
    scenario: Scenario,
    whole: Scenario | None,
    reason: str,
    options: Options,
    *,
    core_wait: float,
) -> list[PlanUpdate]:
    """Return the plans that are worth a trial, with the shortest prediction first.

    `scenario` has the times of B and W apart. `whole` has the same delays and memory, but the times
    of backwards in one piece as B, and no time for W; None if these times are not known.
    `core_wait` is the share of a step in which the ranks waited for a core. A prediction assumes
    that every rank has a core, so it says less, the larger this share is.
    """
    stages, count = scenario.stages, scenario.microbatches
    found = [(generate("auto", scenario, options), scenario)]
    alone = not options.placement or options.placement == one_each(stages)
    if alone:
        found.append((zb_h1(stages, count), scenario))
    if whole is not None:
        found.append((in_one_piece(generate("auto", whole, options)), whole))
        if alone:
            found.append((in_one_piece(one_f_one_b(stages, count)), whole))
    predicted = [
        (replay(plan, times).makespan_ps, PlanUpdate.of(plan, times, reason))
        for plan, times in found
        if check(plan, times) is None
    ]
    if not predicted:
        raise UsageError("no plan of the schedule fits the memory")
    predicted.sort(key=lambda each: each[0])
    most = predicted[0][0] * _ERROR * (1 + core_wait)
    return _different([update for makespan_ps, update in predicted if makespan_ps <= most])


def _different(updates: Sequence[PlanUpdate]) -> list[PlanUpdate]:
    """Return the updates without those whose programs are the same as an earlier one's."""
    found: list[PlanUpdate] = []
    for each in updates:
        if all(each.plan.programs != other.plan.programs for other in found):
            found.append(each)
    return found
