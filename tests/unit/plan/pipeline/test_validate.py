from dataclasses import replace

import pytest

from slackline.errors import UsageError
from slackline.plan.pipeline import (
    Instruction,
    PipelinePlan,
    Scenario,
    check,
    one_f_one_b,
    validate,
)


def plan(*programs: str, microbatches: int = 2) -> PipelinePlan:
    return PipelinePlan(
        name="mine",
        microbatches=microbatches,
        placement=tuple(range(len(programs))),
        programs=tuple(tuple(map(Instruction.parse, each.split())) for each in programs),
    )


@pytest.mark.parametrize(
    ("programs", "fault"),
    [
        (["0F0 0B0 0W0 0F1 0B1"], "stage 0, W1: is missing on rank 0"),
        (["0F0 0B0 0W0 0F1 0BW1"], None),
        (["0F0 0B0 0W0 0F1 0B1 0W1 0F1"], "stage 0, F1: runs twice"),
        (["0B0 0F0 0W0 0F1 0B1 0W1"], "stage 0, B0: runs before F0"),
        (["0F0 0W0 0B0 0F1 0B1 0W1"], "stage 0, W0: runs before B0"),
        (["0F0 0B0 0BW0 0F1 0B1 0W1"], "stage 0, BW0: repeats a part of B0"),
        (["0F0 0BW0 0W0 0F1 0BW1"], "stage 0, W0: repeats a part of BW0"),
        (["0F2"], "stage 0, F2: the plan has microbatches 0 to 1"),
        (["1F0"], "stage 1, F0: the plan has stages 0 to 0"),
        (["1F0", "0F0"], "stage 1, F0: stands on rank 0, but the stage is on rank 1"),
        (
            ["0F0 0BW0 0F1 0BW1", "1F0 1F1 1BW0 1BW1"],
            "stage 0, BW0: waits for 1BW0, which stands behind 1F1, which waits for 0F1, "
            "which stands behind 0BW0: no one can go on",
        ),
        (
            ["0F0 0F1 0BW0 0BW1", "1F0 1F1 1BW1 1BW0"],
            None,
        ),
    ],
)
def test_the_first_fault_is_found(programs: list[str], fault: str | None) -> None:
    found = check(plan(*programs))
    assert (None if found is None else str(found)) == fault


def test_an_error_points_at_the_fault_in_the_grid() -> None:
    with pytest.raises(UsageError) as error:
        validate(plan("0F0 0BW0 0F1 0BW1", "1F0 1F1 1BW0 1BW1"))
    assert str(error.value).splitlines()[1:] == [
        "     rank 0  rank 1",
        "  0  0F0     1F0",
        "  1  0BW0    1F1     <- rank 0",
        "  2  0F1     1BW0",
        "  3  0BW1    1BW1",
    ]
    assert error.value.rank == 0


def test_memory_is_counted_from_the_start_of_f_to_the_end_of_w() -> None:
    scenario = Scenario.uniform(2, 3, cap=2)
    assert check(one_f_one_b(2, 3), scenario) is None
    assert str(check(one_f_one_b(2, 3), scenario.capped([1, 1]))) == (
        "stage 0, F1: needs 2 activations, but the cap is 1"
    )


def test_a_plan_for_another_scenario_is_refused() -> None:
    with pytest.raises(UsageError) as error:
        validate(one_f_one_b(2, 3), Scenario.uniform(4, 3))
    assert str(error.value) == (
        "1f1b, 2 stages, 3 microbatches: the plan has 2 stages, the scenario 4"
    )
    with pytest.raises(UsageError, match=r"the plan has 3 microbatches, the scenario 5$"):
        validate(one_f_one_b(2, 3), Scenario.uniform(2, 5))


def test_programs_and_placement_must_agree() -> None:
    with pytest.raises(UsageError) as error:
        replace(one_f_one_b(2, 3), placement=(0, 0))
    assert str(error.value) == "2 programs need stages on ranks 0 to 1, not on 0"
