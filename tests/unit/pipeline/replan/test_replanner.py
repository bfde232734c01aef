"""Tests that all ranks adopt a new plan at the same step, and that no rank searches in its own
thread."""

from dataclasses import replace

from slackline.pipeline import Came, Span, StepRecord
from slackline.pipeline._policy import POLICIES
from slackline.pipeline.replan import MetricsExchange, Replanner, can_replan
from slackline.pipeline.replan.foresight import Foresight
from slackline.plan.pipeline import Instruction, Kind, Options, Scenario, generate, one_each, vee
from slackline.records import CoreTimes
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
        "link 0-1 has 40 ms, which needs a slack of 5; the plan has 2, which absorbs 10 ms"
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
    assert seen[-1][1] == "link 0-1 has 40 ms; the plan was made for 0 s"


def test_the_wait_for_a_core_comes_by_stage_and_computation():
    placement = (0, 1, 1, 0)

    def work(group):
        metrics = MetricsExchange(group, placement, ["one"] * 2, tag=7)
        for step in range(2):
            ended = record(group.rank, placement, step, 0)
            assert len(ended.spans) == 6
            times = CoreTimes(run_ns=0, delay_ns=60 * (group.rank + 1))
            metrics.publish(replace(ended, core_times=times), 0)
        measured, _ = metrics.poll()
        return measured.core_waits

    assert run_ranks(2, work) == [(10, 20, 20, 10)] * 2


def plans_tried(times_ms, late_ms=0):
    """Run steps on two ranks until a trial has ended; return each rank's plans and reasons.

    `times_ms(names)` is the time of a step with a plan whose name is the argument. In the first
    step of each turn of the trial, link 0-1 has a delay of `late_ms`.
    """
    placement = one_each(2)
    scenario = Scenario.uniform(2, 4)
    start = generate("auto", scenario, Options(effort=0.1))

    def work(group):
        rank = group.rank
        metrics = MetricsExchange(group, placement, ["one"] * 2, tag=7)
        replanner = Replanner(
            POLICIES["auto"], start, scenario, group, metrics, tag=8, effort=0.1, joins=True
        )
        seen = []
        while not any("step times: " in reason for _, reason in seen):
            reason = replanner.next()
            name = replanner.plan.name
            seen.append((name, reason))
            turns = len(seen) > 8 and name != seen[-2][0]
            ended = record(rank, placement, len(seen) - 1, late_ms if turns else 0)
            spans = ended.spans
            if "BW" in name:  # A backward in one piece takes 16 ms, not 20.
                spans = (spans[0], Span(Instruction(rank, Kind.BW, 0), 10 * MS, 26 * MS))
            wall_ns = round(times_ms(name) * MS) - rank
            replanner.publish(replace(ended, spans=spans, wall_ns=wall_ns))
        return seen, replanner.plan

    return run_ranks(2, work)


def test_all_ranks_measure_backwards_in_one_piece_try_the_same_plans_and_keep_the_fastest():
    found = plans_tried(lambda name: {"auto": 50.0, "zb-h1": 60.0}.get(name, 40.0))
    assert found[0] == found[1]
    seen, plan = found[0]
    assert [name for name, _ in seen[:7]] == ["auto"] * 4 + ["auto with BW"] * 2 + ["auto"]
    assert [reason for _, reason in seen[:7]] == [
        *[""] * 4,
        "the times of backwards in one piece are measured",
        "",
        "the times of backwards in one piece have been measured",
    ]
    first = next(reason for _, reason in seen[7:] if reason)
    assert first.startswith("the stages' times are known: ")
    assert " a trial of " in first
    assert plan.name.endswith("with BW")
    assert seen[-1][1].startswith(f"a trial, step times: {plan.name} 40 ms, ")


def test_a_plan_with_b_and_w_apart_wins_where_it_is_faster():
    (_, plan), _ = plans_tried(lambda name: 40.0 if name == "auto" else 50.0)
    assert plan.name == "auto"


def test_a_delay_in_one_step_of_a_turn_begins_no_other_trial():
    (seen, _), _ = plans_tried(lambda name: 40.0, late_ms=80)
    assert sum("are known" in reason for _, reason in seen) == 1
    assert not any("link 0-1 has" in reason for _, reason in seen)


PERIOD, SLOW, STEP_MS = 30, 10, 400
"""The numbers of steps of a period and of its slow time, and the duration of a step."""


def periodic_plans(forecasts):
    """Run steps over a link that is slow at the start of each period; return each rank's planned
    delays by step, the reasons, and the news about forecasts."""
    placement, news = one_each(3), []
    scenario = Scenario.uniform(3, 6)
    options = Options(effort=0.01, placement=placement)
    start = generate("adaptra", scenario, options)

    def work(group):
        rank, now_ns = group.rank, 0
        metrics = MetricsExchange(group, placement, ["one"] * 3, tag=7)
        foresight = Foresight(2, lambda *each: news.append(each)) if forecasts else None
        replanner = Replanner(
            POLICIES["adaptra"],
            start,
            scenario,
            group,
            metrics,
            tag=8,
            effort=0.01,
            forecaster=foresight,
            clock=lambda: now_ns,
        )
        seen = []
        for step in range(7 * PERIOD):
            reason = replanner.next()
            seen.append((replanner.scenario.forward_delay_ps[0] // 10**9, reason))
            if rank == 0:
                replanner._search.wait()
            delay_ms = 40 if step >= PERIOD and step % PERIOD < SLOW else 0
            now_ns += STEP_MS * MS
            ended = record(rank, placement, step, delay_ms)
            replanner.publish(replace(ended, wall_ns=STEP_MS * MS))
        return seen

    found = run_ranks(3, work)
    assert found[0] == found[1] == found[2]
    return found[0], news


def slow_steps(seen):
    """Return for each of the last two periods the steps that ran with a plan for the slow link."""
    return [
        [step - begin for step in range(begin - 5, begin + PERIOD - 5) if seen[step][0]]
        for begin in (5 * PERIOD, 6 * PERIOD)
    ]


def test_a_plan_made_ahead_has_its_slack_before_the_delay_comes_and_gives_it_back_after():
    seen, news = periodic_plans(forecasts=True)
    assert slow_steps(seen) == [list(range(-1, SLOW))] * 2
    assert seen[6 * PERIOD - 1][1] == (
        "link 0-1 is expected to have 40 ms; the plan was made for 0 s. Every 12 s the link "
        "slows by 40 ms for 4 s; the next time is in 2.4 s."
    )
    assert [choice for choice, _ in news] == ["link 0-1: periodic"]


def test_a_plan_made_after_the_delay_has_come_is_late_at_both_ends():
    seen, news = periodic_plans(forecasts=False)
    assert slow_steps(seen) == [list(range(7, SLOW + 10))] * 2
    assert news == []


def test_which_policies_make_new_plans_for_which_placements():
    assert can_replan(POLICIES["auto"], vee(4))
    assert can_replan(POLICIES["auto"], one_each(4))
    assert can_replan(POLICIES["adaptra"], one_each(4))
    assert not can_replan(POLICIES["adaptra"], vee(4))
    assert not can_replan(POLICIES["ready"], one_each(4))
