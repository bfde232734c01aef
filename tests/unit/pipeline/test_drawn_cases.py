"""Tests of the drawn models themselves: their texts, what is drawn, shrinking, and differences."""

from dataclasses import replace
from datetime import timedelta

import pytest
import torch
from model_cases.cases import Case, Part, Plan, Stage, Step, read_case
from model_cases.draw import draw_case, draw_replicas
from model_cases.failures import report, shrink
from model_cases.one_process import expected_results
from model_cases.parts import PARTS
from model_cases.programs import ACTIONS, LOSSES
from model_cases.results import difference
from model_cases.stages import STREAMS
from model_cases.wraps import WRAPS

from slackline.pipeline import POLICIES
from slackline.plan.pipeline import SCHEDULES

MANY = 500
LONG = timedelta(minutes=1)


def plain(rows=(2, 2), **changes):
    plan = Plan(schedule="gpipe", microbatches=len(rows))
    case = Case(
        seed=1,
        ranks=1,
        placement=(0,),
        stages=(Stage(parts=(Part(kind="linear"),)),),
        steps=(Step(rows=rows, plan=plan),),
    )
    return replace(case, **changes)


@pytest.mark.parametrize("draw", [draw_case, draw_replicas])
def test_the_text_of_a_case_is_the_case(draw):
    for seed in range(40):
        case = draw(seed)
        assert draw(seed) == case
        assert read_case(repr(case)) == case
        assert read_case(str(case)) == case


def test_everything_is_drawn():
    cases = [draw_case(seed) for seed in range(MANY)]
    stages = [stage for case in cases for stage in case.stages]
    parts = [part for stage in stages for part in stage.parts]
    steps = [step for case in cases for step in case.steps]
    plans = [step.plan for step in steps if step.plan is not None]
    assert {part.kind for part in parts} == set(PARTS)
    assert {wrap for part in parts for wrap in part.wraps} == set(WRAPS)
    assert {name for stage in stages for name in stage.sends} == set(STREAMS)
    assert {action for step in steps for action in step.actions} == set(ACTIONS)
    assert {case.loss for case in cases} == set(LOSSES)
    assert {plan.schedule for plan in plans} == set(SCHEDULES)
    assert {plan.policy for plan in plans} == {None, *POLICIES}
    assert {plan.microbatches for plan in plans} == set(range(1, 10))
    assert {plan.split for plan in plans} == {None, True, False}
    assert {len(case.stages) for case in cases} == {1, 2, 3, 4}
    assert {case.size for case in cases} == {1, 2, 3, 4}
    assert {case.replicas for case in cases} == {1, 2}
    assert any(len(step.rows) > 1 and len(set(step.rows)) > 1 for step in steps)


def test_a_failed_case_is_made_as_small_as_it_can_be():
    case = next(
        case
        for case in map(draw_case, range(MANY))
        if len(case.stages) == 4 and len(case.steps) == 3 and "tied" in repr(case)
    )

    def train(cases):
        return ["result 0, a: differs" if "tied" in repr(each) else "" for each in cases]

    small, said = shrink(case, "result 0, b: differs", train, LONG)
    assert said == "result 0, a: differs"
    assert small == Case(
        seed=case.seed,
        ranks=1,
        placement=(0,),
        stages=(Stage(parts=(Part(kind="tied"),)),),
        steps=(Step(rows=(1,), plan=Plan(schedule="gpipe", microbatches=1)),),
    )
    text = report(case, "result 0, b: differs", train, LONG)
    assert text == (
        f"seed {case.seed}: result 0, b: differs\n{case}\n"
        f"a smaller case fails alike: result 0, a: differs\n{small}\n"
    )


def test_a_case_that_fails_in_another_way_is_not_taken_for_smaller():
    case = draw_case(3)
    other = ["ValueError: x", "", "result 0, a: None, not [1]"]

    def train(cases):
        return [other[place % 3] for place, _ in enumerate(cases)]

    assert shrink(case, "result 0, b: differs", train, LONG) == (case, "result 0, b: differs")


def test_the_expected_gradients_of_microbatches_are_those_of_the_whole_batch():
    cut, whole = expected_results(plain((2, 2))), expected_results(plain((4,)))
    for name, value in whole[0].items():
        if name.startswith("gradient"):
            torch.testing.assert_close(cut[0][name], value)
            assert value.abs().max() > 0
    undivided = Plan(schedule="gpipe", microbatches=2, scale=False)
    sums = expected_results(plain((2, 2), steps=(Step(rows=(2, 2), plan=undivided),)))[0]
    name = "gradient of 0.parts.0.layer.weight"
    torch.testing.assert_close(sums[name], 2 * cut[0][name])


def test_a_difference_is_told_with_the_result_and_the_name():
    one, other = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5])
    assert difference([{"a": one}], [{"a": one.clone(), "b": other}]) == ""
    assert difference([{}, {"a": one}], [{}, {"a": other}]) == (
        "result 1, a: differs by up to 0.5: [1, 2], not [1, 2.5]"
    )
    assert difference([{"a": None}], [{"a": one}]) == "result 0, a: None, not [1, 2]"
    assert difference([{"a": one}], [{"a": one.double()}]) == (
        "result 0, a: torch.float32 [2], not torch.float64 [2]"
    )
    zero = torch.zeros(1)
    assert difference([{"a": zero}], [{"a": -zero}]) != ""
