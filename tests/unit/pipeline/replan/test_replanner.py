"""Tests that all ranks adopt a new plan at the same step, and that no rank searches in its own
thread."""

from slackline.pipeline import Came, Span, StepRecord
from slackline.pipeline._policy import POLICIES
from slackline.pipeline.replan import MetricsExchange, Replanner, can_replan
from slackline.plan.pipeline import Instruction, Kind, Options, Scenario, generate, one_each, vee
from slackline.testing import run_ranks

MS = 1_000_000


def record(rank, placement, step, delay_ms):
    """Return the record of a step with computations of 10 ms and this delay of link 0-1."""
    mine = [stage for stage, place in enumerate(placement) if place == rank]
    spans, came = [], []
    for stage in mine:
        for at, kind in enumerate((Kind.F, Kind.B, Kind.W)):
            start = 10 * at * MS
            spans.append(Span(Instruction(stage, kind, 0), start, start + 10 * MS))
        for other, kind in ((stage - 1, Kind.F), (stage + 1, Kind.B)):
            if 0 <= other < len(placement) and placement[other] != rank:
                delay = delay_ms if min(stage, other) == 0 else 0
                came.append(Came(Instruction(other, kind, 0), 0, delay * MS, 64))
    return StepRecord(
        rank=rank,
        step=step,
        time_ns=0,
        wall_ns=30 * MS,
        plan="",
        policy="",
        order="",
        spans=tuple(spans),
        waits=(),
        came=tuple(came),
        sends=(),
        peak_held=tuple((stage, 1.0) for stage in mine),
    )


def plans_of(placement, delay_ms, name="auto"):
    """Run steps on every rank until a plan for the slow link is adopted; return each rank's plans
    by step."""
    size = max(placement) + 1
    scenario = Scenario.uniform(len(placement), 6)
    options = Options(effort=0.1, placement=placement)
    start = generate(name, scenario, options)

    def work(group):
        rank = group.rank
        metrics = MetricsExchange(group, placement, ["one"] * size, tag=7)
        replanner = Replanner(POLICIES[name], start, scenario, group, metrics, tag=8, effort=0.1)
        seen = []
        while not any("link 0-1 has" in reason for _, reason, _ in seen):
            step = len(seen)
            reason = replanner.next()
            seen.append((replanner.plan.orders(), reason, replanner.waits_ps))
            replanner.publish(record(rank, placement, step, delay_ms))
        return seen, replanner.scenario, replanner.plan

    return run_ranks(size, work)


def test_every_rank_adopts_the_same_plan_at_the_same_step():
    found = plans_of(one_each(3), 40)
    assert found[0] == found[1] == found[2]
    seen, scenario, plan = found[0]
    assert scenario.forward_delay_ps == scenario.backward_delay_ps == (40 * 10**9, 0)
    assert scenario.forward_ps == (10 * 10**9,) * 3
    assert plan == generate("auto", scenario, Options(effort=0.1))
    assert seen[-1][1] == (
        "link 0-1 has 40.00 ms, which needs a slack of 5; the plan has 2, which absorbs 10.00 ms"
    )
    # Step 1 is the first measured step. Step 4 begins with the figures of two steps, so the search
    # starts. The size of the found plan is sent at the end of step 4 at the earliest.
    assert len(seen) > 7
    assert [reason for _, reason, _ in seen[:7]] == [""] * 7


def test_ranks_with_several_stages_adopt_a_plan_for_a_slow_link():
    found = plans_of(vee(4), 40)
    assert found[0] == found[1]
    seen, scenario, plan = found[0]
    assert plan.placement == vee(4)
    assert scenario.forward_delay_ps == (40 * 10**9, 0, 0)
    assert seen[-1][1] == "link 0-1 has 40.00 ms; the plan was made for 0.00 ms"


def test_which_policies_make_new_plans_for_which_placements():
    assert can_replan(POLICIES["auto"], vee(4))
    assert can_replan(POLICIES["auto"], one_each(4))
    assert can_replan(POLICIES["adaptra"], one_each(4))
    assert not can_replan(POLICIES["adaptra"], vee(4))
    assert not can_replan(POLICIES["ready"], one_each(4))
