"""Tests of ScheduleConfig: wrong values, and guesses of times and delays for the first plan."""

from datetime import timedelta

import pytest

from slackline.errors import UsageError
from slackline.pipeline import ScheduleConfig
from slackline.pipeline._plans import plan_for, scenario_for
from slackline.plan.pipeline import generate, vee

MS = timedelta(milliseconds=1)
TIMES = ((10 * MS, 12 * MS, 8 * MS), (14 * MS, 15 * MS, timedelta()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"policy": "eager"},
            'there is no policy "eager"; policies are fixed, ready, adaptra, auto',
        ),
        (
            {"full_backward": True, "split_backward": True},
            "full_backward=True runs backwards in one piece; split_backward must not be True",
        ),
        (
            {"delegation": "often"},
            'delegation must be one of always, never, auto, not "often"',
        ),
        (
            {"stage_times": [(10 * MS, timedelta(), MS)]},
            "stage_times: B of stage 0 must be at least 1 us, not 0 s",
        ),
        (
            {"stage_times": TIMES, "link_delays": [-MS]},
            "link_delays: the delay of link 0 must be at least 0 us, not -1 ms",
        ),
        (
            {"link_delays": [MS]},
            "link_delays need stage_times: only their ratio to the times matters",
        ),
        ({"plan_effort": 0}, "plan_effort must be positive, not 0"),
        ({"keep_records": 0}, "keep_records must be a positive integer, not 0"),
    ],
)
def test_a_wrong_value_is_refused_and_named(options, message):
    with pytest.raises(UsageError) as raised:
        ScheduleConfig(**options)
    assert str(raised.value) == message


def test_guesses_of_times_and_delays_make_the_first_plan():
    config = ScheduleConfig(stage_times=TIMES, link_delays=[30 * MS], plan_effort=0.1)
    scenario = scenario_for(2, 6, 4, config)
    assert scenario.forward_ps == (10 * 10**9, 14 * 10**9)
    assert scenario.backward_input_ps == (12 * 10**9, 15 * 10**9)
    assert scenario.backward_weight_ps == (8 * 10**9, 0)
    assert scenario.forward_delay_ps == scenario.backward_delay_ps == (30 * 10**9,)
    plan = plan_for("auto", (0, 1), scenario, config)
    assert plan != plan_for("auto", (0, 1), scenario_for(2, 6, 4, ScheduleConfig()), config)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"stage_times": TIMES},
            "stage_times must have one value for each of the 4 stages, not 2",
        ),
        (
            {"stage_times": TIMES * 2, "link_delays": [MS]},
            "link_delays must have one value for each of the 3 links, not 1",
        ),
    ],
)
def test_guesses_of_another_number_of_stages_are_refused(options, message):
    with pytest.raises(UsageError) as raised:
        scenario_for(4, 6, None, ScheduleConfig(**options))
    assert str(raised.value) == message


def test_auto_plans_several_stages_a_rank_by_search():
    config = ScheduleConfig(plan_effort=0.1)
    scenario = scenario_for(4, 6, 3, config)
    plan = plan_for("auto", vee(4), scenario, config)
    assert (plan.name, plan.placement) == ("auto", vee(4))
    assert plan != generate("zb-v", scenario_for(4, 6, None, config))
