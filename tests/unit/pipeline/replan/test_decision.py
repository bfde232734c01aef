"""Tests that a plan is replaced when a link exceeds its slack for long enough, and that a reason is
given."""

from dataclasses import replace

import pytest

from slackline.pipeline.replan._decision import (
    Expected,
    ReplanState,
    StepMetrics,
    Thresholds,
    decide,
    warm_up,
)
from slackline.plan.pipeline import Scenario, generate, one_f_one_b, zb_h2

MS = 1_000_000
THRESHOLDS = Thresholds()


def measured(step, delay_ms=0.0, link=1, stages=4, forward_ms=(10, 10, 10, 10)):
    delays = [0] * (stages - 1)
    delays[link] = round(delay_ms * MS)
    return StepMetrics(
        step=step,
        forward=tuple(each * MS for each in forward_ms[:stages]),
        backward=(10 * MS,) * stages,
        weights=(10 * MS,) * stages,
        down=tuple(delays),
        up=tuple(delays),
    )


def start(plan, follows_times=False):
    scenario = Scenario.uniform(plan.stages, plan.microbatches)
    return ReplanState(planned=scenario, warm_up=warm_up(plan), follows_times=follows_times)


def run(state, delays, **details):
    """Return the steps after which a new plan is requested, with the reasons."""
    asked = []
    for step, delay in enumerate(delays):
        state, scenario, reason = decide(measured(step, delay, **details), state, THRESHOLDS)
        if scenario is not None:
            asked.append((step, reason))
            state = state.replanned(scenario, generate("slack", scenario))
    return asked


def test_the_warm_up_is_read_off_the_plan():
    assert warm_up(one_f_one_b(4, 8)) == (4, 3, 2, 1)
    assert warm_up(zb_h2(4, 8)) == (7, 5, 3, 1)


def test_a_link_within_its_slack_changes_nothing():
    assert run(start(zb_h2(4, 12)), [9.0] * 10) == []


def test_a_link_that_breaks_its_slack_does_after_two_steps():
    assert run(start(zb_h2(4, 12)), [0, 0, 30, 30, 30, 30, 30]) == [
        (
            4,
            "link 1-2 has 30 ms, which needs a slack of 4; the plan has 2, which absorbs 10 ms",
        )
    ]


def test_one_slow_step_is_a_hiccup():
    assert run(start(zb_h2(4, 12)), [0, 0, 0, 60, 0, 0, 0, 0]) == []


def test_a_link_that_recovers_gives_its_slack_back_after_five_steps():
    found = run(start(zb_h2(4, 12)), [30] * 6 + [0] * 10)
    assert [step for step, _ in found] == [1, 11]
    assert found[1][1] == "link 1-2 has 0 s; the plan was made for 30 ms"


@pytest.mark.parametrize(("follows_times", "asked"), [(True, [5]), (False, [])])
def test_a_delay_within_the_slack_is_planned_for_after_five_steps_where_times_count(
    follows_times, asked
):
    scenario = Scenario.uniform(4, 12, (10 * 10**9, 10 * 10**9, 10 * 10**9))
    state = replace(
        start(zb_h2(4, 12), follows_times=follows_times), measured_once=True, planned=scenario
    )
    found = run(state, [0, *[9] * 6])
    assert [step for step, _ in found] == asked
    for _, reason in found:
        assert reason == "link 1-2 has 9 ms; the plan was made for 0 s"


def test_a_delay_that_wavers_by_less_than_the_margin_changes_nothing():
    found = run(start(zb_h2(4, 12)), [30, 30, 32, 29, 31, 32, 28, 29, 30, 31])
    assert [step for step, _ in found] == [1]


def test_the_first_times_are_planned_for_once():
    found = run(start(zb_h2(4, 12), follows_times=True), [0] * 8)
    assert [step for step, _ in found] == [2]
    assert found[0][1].startswith("the stages' times are known: a microbatch takes on stage 0: 30")


def test_a_stage_that_becomes_slower_is_planned_for_after_five_steps():
    state = replace(start(zb_h2(4, 12), follows_times=True), measured_once=True)
    scenario = Scenario.uniform(4, 12, (10 * 10**9, 10 * 10**9, 10 * 10**9))
    state = replace(state, planned=scenario)
    for step in range(5):
        slower = measured(step, forward_ms=(25, 10, 10, 10))
        state, wanted, reason = decide(slower, state, THRESHOLDS)
        assert (wanted is None) == (step < 4)
    assert reason == (
        "stage 0 takes 45 ms for a microbatch, all stages 135 ms; "
        "the plan was made for 30 ms and 120 ms"
    )


@pytest.mark.parametrize(("delay_ms", "asked"), [(0, []), (25, [4])])
def test_stages_that_all_become_slower_change_a_plan_only_where_a_link_has_a_delay(delay_ms, asked):
    times = (10 * 10**9, 10 * 10**9, 10 * 10**9)
    planned = Scenario.uniform(4, 12, times).delayed(1, delay_ms * 10**9)
    state = replace(start(zb_h2(4, 12), follows_times=True), measured_once=True, planned=planned)
    found = run(state, [delay_ms] * 8, forward_ms=(25, 25, 25, 25))
    assert [step for step, _ in found] == asked


@pytest.mark.parametrize(("wait_ms", "asked"), [(0, [1]), (8, [1]), (15, [])])
def test_a_delay_counts_beyond_the_time_for_which_ranks_wait_for_a_core(wait_ms, asked):
    state, found = start(zb_h2(4, 12)), []
    for step in range(4):
        busy = replace(measured(step, 30), core_waits=(0, wait_ms * MS, wait_ms * MS, 0))
        state, scenario, _ = decide(busy, state, THRESHOLDS)
        if scenario is not None:
            found.append(step)
            assert scenario.forward_delay_ps[1] == (30 - 2 * wait_ms) * 10**9
            state = state.replanned(scenario, generate("slack", scenario))
    assert found == asked


def foretold(delay_ms):
    return {1: Expected(delay_ns=round(delay_ms * MS), reason="Every 40 s.")}


def test_a_delay_that_is_foretold_is_planned_for_at_once_although_it_has_not_come():
    state = replace(start(zb_h2(4, 12)), measured_once=True)
    state, scenario, reason = decide(measured(0), state, THRESHOLDS, foretold(30))
    assert scenario.forward_delay_ps == scenario.backward_delay_ps == (0, 30 * 10**9, 0)
    assert reason == ("link 1-2 is expected to have 30 ms; the plan was made for 0 s. Every 40 s.")
    state = state.replanned(scenario, generate("slack", scenario))
    # The plan holds the slack for as long as the delay is foretold, whatever is measured.
    for step in range(1, 10):
        state, scenario, _ = decide(measured(step), state, THRESHOLDS, foretold(30.5))
        assert scenario is None
    state, scenario, reason = decide(measured(10, 30), state, THRESHOLDS, foretold(0))
    assert scenario.forward_delay_ps == (0, 0, 0)
    assert reason == ("link 1-2 is expected to have 0 s; the plan was made for 30 ms. Every 40 s.")


def test_a_foretold_delay_within_the_slack_needs_no_plan_where_times_do_not_count():
    state = replace(start(zb_h2(4, 12)), measured_once=True)
    assert decide(measured(0), state, THRESHOLDS, foretold(9))[1] is None
    state = replace(start(zb_h2(4, 12), follows_times=True), measured_once=True)
    assert decide(measured(0), state, THRESHOLDS, foretold(9))[1] is not None


def test_other_links_are_reacted_to_while_one_is_foretold():
    state = replace(start(zb_h2(4, 12)), measured_once=True)
    asked = []
    for step in range(4):
        slow = measured(step, 30, link=2)
        state, scenario, reason = decide(slow, state, THRESHOLDS, foretold(0))
        asked.append(scenario is not None)
    assert asked == [False, True, True, True]
    assert reason.startswith("link 2-3 has 30 ms, which needs a slack of 4")
