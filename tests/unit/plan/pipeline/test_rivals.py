"""Tests of the plans that are worth a trial."""

from dataclasses import replace

import pytest

from slackline.errors import UsageError
from slackline.plan.pipeline import (
    PS_PER_MS,
    Kind,
    Options,
    PlanUpdate,
    Scenario,
    decode_updates,
    encode_updates,
    in_one_piece,
    interleaved_1f1b,
    looped,
    one_f_one_b,
    replay,
    rivals,
    validate,
    zb_h2,
)

TIMES = Scenario.uniform(4, 8, (10 * PS_PER_MS, 10 * PS_PER_MS, 10 * PS_PER_MS))
OPTIONS = Options(effort=0.1)


def whole(scenario: Scenario, ms: int) -> Scenario:
    """Return the scenario of backwards in one piece that take `ms`."""
    return replace(scenario, backward_input_ps=(ms * PS_PER_MS,) * 4, backward_weight_ps=(0,) * 4)


def names(scenario: Scenario, ms: int | None, core_wait: float = 0.0) -> list[str]:
    joined = None if ms is None else whole(scenario, ms)
    found = rivals(scenario, joined, "for a test", OPTIONS, core_wait=core_wait)
    return [each.plan.name for each in found]


@pytest.mark.parametrize("plan", [zb_h2(4, 8), interleaved_1f1b(8, 8, stages_per_rank=2)])
def test_a_plan_in_one_piece_is_valid_and_has_one_backward_for_each_microbatch(plan) -> None:
    found = in_one_piece(plan)
    scenario = Scenario.uniform(plan.stages, plan.microbatches)
    peaks = replay(plan, scenario).peak_activations
    validate(found, scenario.capped(peaks))
    kinds = [each.kind for program in found.programs for each in program]
    assert set(kinds) == {Kind.F, Kind.BW}
    assert len(kinds) == 2 * plan.stages * plan.microbatches
    assert found.name == f"{plan.name} with BW"


def test_a_form_of_the_backward_that_is_clearly_shorter_needs_no_trial_of_the_other() -> None:
    assert names(TIMES, 19) == ["auto", "zb-h1"]
    assert set(names(TIMES, 12)) <= {"auto with BW", "1f1b with BW"}


def test_close_predictions_are_tried_and_ranks_that_wait_for_cores_widen_the_choice() -> None:
    alone, shared = names(TIMES, 16), names(TIMES, 16, core_wait=0.5)
    assert set(alone) < set(shared)
    assert {"auto", "auto with BW"} <= set(shared)


def test_without_the_time_of_one_piece_only_plans_with_b_and_w_apart_are_tried() -> None:
    assert not any("BW" in name for name in names(TIMES, None, core_wait=1.0))


def test_a_slow_link_leaves_no_plan_in_one_piece() -> None:
    assert names(TIMES.delayed(2, 60 * PS_PER_MS), 16) == ["auto"]


def test_the_rivals_fit_the_memory() -> None:
    capped = TIMES.capped([4] * 4)
    for each in rivals(capped, whole(capped, 15), "for a test", OPTIONS, core_wait=1.0):
        validate(each.plan, capped)


def test_several_stages_a_rank_have_rivals_of_their_own_placement() -> None:
    options = replace(OPTIONS, placement=looped(4, 2))
    for each in rivals(TIMES, whole(TIMES, 15), "", options, core_wait=1.0):
        assert each.plan.placement == looped(4, 2)


def test_updates_are_the_same_after_their_way_as_bytes() -> None:
    updates = [PlanUpdate.of(plan, TIMES, "why") for plan in (zb_h2(4, 8), one_f_one_b(4, 8))]
    data = encode_updates(updates)
    assert decode_updates(data) == updates
    with pytest.raises(UsageError, match=f"^{len(data) - 1} bytes end within a plan of a pipeline"):
        decode_updates(data[:-1])
