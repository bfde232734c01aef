"""Tests of plans for ranks with several stages each, in any placement."""

import pytest

from slackline.errors import UsageError
from slackline.plan.pipeline import (
    Options,
    Scenario,
    dual_pipe_v,
    generate,
    interleaved_1f1b,
    looped,
    lower_bound_ps,
    replay,
    vee,
    zb_v,
)

MS = 10**9
BLOCKS = (0, 0, 1, 1, 2, 2)
PLACEMENTS = [looped(8, 2), vee(8), BLOCKS, (0, 1, 0, 1, 1, 0), (0, 0, 0)]


def makespan(plan, scenario):
    return replay(plan, scenario).makespan_ps


@pytest.mark.parametrize("cap", [None, 1, 3])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_any_placement_has_a_plan_that_is_never_longer_than_readiness(placement, cap):
    scenario = Scenario.uniform(len(placement), 8, (10 * MS, 12 * MS, 7 * MS), cap=cap)
    for link in range(0, len(placement) - 1, 2):
        scenario = scenario.delayed(link, 15 * MS)
    options = Options(placement=placement, effort=0.1)
    plan, ready = (generate(name, scenario, options) for name in ("auto", "ready"))
    assert plan.placement == ready.placement == placement
    assert lower_bound_ps(scenario, placement) <= makespan(plan, scenario)
    assert makespan(plan, scenario) <= makespan(ready, scenario)
    assert generate("auto", scenario, options) == plan


@pytest.mark.parametrize("other", [interleaved_1f1b(8, 8), zb_v(8, 8), dual_pipe_v(8, 8)])
@pytest.mark.parametrize("delay_ms", [0, 20])
def test_a_plan_is_never_longer_than_those_of_the_literature(other, delay_ms):
    scenario = Scenario.uniform(8, 8, (10 * MS, 10 * MS, 10 * MS)).delayed(2, delay_ms * MS)
    plan = generate("auto", scenario, Options(placement=other.placement, effort=0.2))
    assert makespan(plan, scenario) <= makespan(other, scenario)


def test_a_rank_with_all_stages_computes_without_a_pause():
    scenario = Scenario.uniform(3, 4, (10 * MS, 10 * MS, 10 * MS)).delayed(1, 50 * MS)
    plan = generate("auto", scenario, Options(placement=(0, 0, 0)))
    assert makespan(plan, scenario) == 3 * 4 * 30 * MS


def test_a_slow_link_between_ranks_is_planned_around():
    healthy = Scenario.uniform(8, 12, (10 * MS, 10 * MS, 10 * MS), cap=8)
    slow = healthy.delayed(1, 40 * MS).delayed(5, 40 * MS)
    options = Options(placement=vee(8))
    unaware, aware = (generate("auto", each, options) for each in (healthy, slow))
    assert makespan(aware, slow) < makespan(unaware, slow)


def test_a_placement_of_another_length_is_refused():
    scenario = Scenario.uniform(4, 4)
    message = "placement must have one rank for each of the 4 stages, not 3"
    with pytest.raises(UsageError, match=message):
        generate("auto", scenario, Options(placement=(0, 1, 0)))
