import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_scenarios import draw

from slackline.errors import UsageError
from slackline.plan.pipeline import (
    SCHEDULES,
    Options,
    PipelinePlan,
    Scenario,
    auto,
    check,
    lower_bound_ps,
    ready_plan,
    replay,
)


@settings(max_examples=settings.default.max_examples * 2 // 5)
@given(st.integers(0, 10**6))
def test_a_plan_fits_and_is_no_longer_than_any_other_schedule(seed: int) -> None:
    scenario = draw(seed, (2, 8), (4, 20))
    found = auto(scenario, effort=0.2)
    assert check(found.plan, scenario) is None
    mine = replay(found.plan, scenario).makespan_ps
    assert mine == found.makespan_ps >= found.lower_bound_ps == lower_bound_ps(scenario)
    for schedule in SCHEDULES.values():
        if schedule.one_stage_a_rank:
            other = schedule.make(scenario, Options(effort=0.2))
            if check(other, scenario) is None:
                assert mine <= replay(other, scenario).makespan_ps


@settings(max_examples=settings.default.max_examples * 3 // 10)
@given(st.integers(0, 10**6))
def test_readiness_never_exceeds_a_cap_and_never_sticks(seed: int) -> None:
    scenario = draw(seed, (1, 10), (1, 24))
    for cap in (1, 2, scenario.stages):
        capped = scenario.capped([cap] * scenario.stages)
        assert check(ready_plan(capped), capped) is None


def test_the_same_scenario_gives_the_same_plan() -> None:
    scenario = draw(3, (4, 4), (8, 8))
    assert auto(scenario) == auto(scenario)


def test_a_search_that_is_stopped_has_tried_what_must_be_tried() -> None:
    scenario = draw(1013, (6, 6), (10, 10))
    asked = []

    def stop() -> bool:
        asked.append(True)
        return True

    found = auto(scenario, stop=stop)
    assert asked
    assert found.makespan_ps <= replay(ready_plan(scenario), scenario).makespan_ps
    assert auto(scenario).makespan_ps <= found.makespan_ps


def test_a_search_without_end_goes_on_until_it_is_stopped() -> None:
    scenario = draw(1013, (6, 6), (10, 10))
    left = iter(range(20_000))
    found = auto(scenario, effort=math.inf, stop=lambda: next(left, None) is None)
    assert next(left, None) is None
    assert found.makespan_ps <= auto(scenario).makespan_ps
    message = "^a search with effort inf needs a function `stop` that ends it$"
    with pytest.raises(UsageError, match=message):
        auto(scenario, effort=math.inf)
    with pytest.raises(UsageError, match=r"^effort must be positive, not 0$"):
        auto(scenario, effort=0)


def test_the_reason_says_what_was_found_and_how_good_it_is() -> None:
    found = auto(Scenario.uniform(2, 3, (10**10,) * 3))
    assert found.reason == "auto: 100 ms by plain readiness; no order is shorter"
    found = auto(Scenario.uniform(3, 8, (10**10,) * 3, cap=3).delayed(1, 10**10), effort=0.1)
    assert re.fullmatch(
        r"auto: [0-9.]+ ms by .+, the best of \d+ candidates, at most [0-9.]+% above the "
        r"optimum; adaptra takes 270 ms, but stage 0, F3: needs 4 activations, but the cap is 3",
        found.reason,
    )


def gaps(seeds: range, stages: tuple[int, int], counts: tuple[int, int]) -> list[float]:
    """Return by how many percent the schedule `auto` exceeds the optimum, for scenarios with a
    proven optimum."""
    # OR-Tools imports pandas, which would be loaded in every process that only collects tests.
    from pipeline_optimum import optimum_ps

    found = []
    for seed in seeds:
        scenario = draw(seed, stages, counts)
        plan = auto(scenario)
        optimum = plan.makespan_ps
        if plan.makespan_ps > plan.lower_bound_ps:
            proven = optimum_ps(scenario, plan.makespan_ps, seconds=20)
            if proven is None:
                continue
            optimum = proven
        found.append(100 * (plan.makespan_ps - optimum) / optimum)
    return found


def assert_near_the_optimum(found: list[float]) -> None:
    assert sum(found) / len(found) <= 0.3
    assert max(found) <= 3.5


@pytest.mark.parametrize("count", [10, pytest.param(24, marks=pytest.mark.slow)])
def test_small_plans_are_near_the_proven_optimum(count: int) -> None:
    found = gaps(range(count), (2, 4), (4, 8))
    assert len(found) == count
    assert_near_the_optimum(found)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_plans_of_middle_size_are_near_the_proven_optimum() -> None:
    found = gaps(range(100, 180), (2, 8), (4, 16))
    assert len(found) >= 60
    assert_near_the_optimum(found)


def test_a_plan_knows_its_name() -> None:
    plan: PipelinePlan = auto(Scenario.uniform(1, 1)).plan
    assert str(plan) == "auto, 1 stage, 1 microbatch"
