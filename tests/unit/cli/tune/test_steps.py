"""Tests of the durations of steps, from files of telemetry like those that ranks write."""

from pathlib import Path

import made_records
import pytest

from slackline.cli._tune._steps import WARM_UP, Measure, TrialSteps
from slackline.records import (
    Gap,
    GroupOpened,
    Operations,
    PipelineStep,
    Record,
    Setting,
    StepSummary,
    Writer,
)

MS = 1_000_000


def step(number: int, wall_ns: int, *, optimizer: int = 0) -> StepSummary:
    return made_records.step(0, number, optimizer=optimizer, wall_ns=wall_ns)


def pipeline(number: int, time_ns: int) -> PipelineStep:
    return PipelineStep(
        rank=0,
        step=number,
        time_ns=time_ns,
        wall_ns=1,
        computing_ns=1,
        waiting_ns=0,
        plan="1f1b",
        policy="ready",
    )


def setting(name: str, value: str, origin: str = "default") -> Setting:
    return Setting(rank=0, time_ns=0, name=name, value=value, origin=origin)


def operations(
    posted_ns: list[int], sizes: list[int], *, internal: int = 0, lost: int = 0
) -> Operations:
    """Return a batch of all_reduces; `sizes` repeats."""
    rows = [
        (1, 0, -1, sizes[k % len(sizes)], 1, 0, -1, k, internal, 3, 1, at, at, at + 5, 0, 0)
        for k, at in enumerate(posted_ns)
    ]
    return made_records.operations(0, *rows, lost=lost)


def trial(tmp_path: Path, *ranks: list[Record]) -> TrialSteps:
    for rank, records in enumerate(ranks):
        with Writer(tmp_path, rank) as writer:
            for record in records:
                writer.write(record)
    found = TrialSteps(tmp_path, range(len(ranks)))
    found.update()
    return found


def test_overlapped_steps_count_after_the_warm_up_by_the_median_of_the_ranks(
    tmp_path: Path,
) -> None:
    slow = [step(k, 1000 * MS) for k in range(WARM_UP)]
    fast = [slow + [step(WARM_UP + k, (10 * rank + k) * MS) for k in range(6)] for rank in range(3)]
    found = trial(tmp_path, *fast)
    measure = found.measure()
    assert measure == Measure(kind="overlap")
    assert found.count(measure) == WARM_UP + 6
    # Of the first five measured steps rank 0 has the median 2 ms, rank 1 12 ms and rank 2 22 ms.
    assert found.step_ns(measure, 5) == 12 * MS


def test_the_optimizer_with_the_most_time_measures_a_step(tmp_path: Path) -> None:
    records: list[Record] = []
    for k in range(WARM_UP + 2):
        records += [step(2 * k, 3 * MS), step(2 * k + 1, 3 * MS), step(k, 7 * MS, optimizer=1)]
    found = trial(tmp_path, records)
    measure = Measure(kind="overlap")
    assert (found.count(measure), found.step_ns(measure, 2)) == (WARM_UP + 2, 7 * MS)


def test_a_pipeline_counts_from_the_beginning_of_one_step_to_the_next(tmp_path: Path) -> None:
    found = trial(
        tmp_path,
        [setting("schedule", "auto"), *(pipeline(k, 40 * MS * k) for k in range(WARM_UP + 4))],
        [setting("schedule", "auto"), *(pipeline(k, 42 * MS * k) for k in range(WARM_UP + 3))],
    )
    measure = found.measure()
    assert measure == Measure(kind="pipeline")
    assert found.count(measure) == WARM_UP + 2
    assert found.step_ns(measure, 2) == 41 * MS


def test_steps_are_unknown_until_every_rank_has_taken_one(tmp_path: Path) -> None:
    assert trial(tmp_path, [step(0, MS)], []).measure() is None


def test_operations_that_repeat_are_measured_in_blocks_of_50_ms(tmp_path: Path) -> None:
    # Iterations of 10 ms with three all_reduces: a block is five iterations.
    posted = [10 * MS * (k // 3) + MS * (k % 3) for k in range(3 * 200)]
    records = [
        operations([1, 2, 3], [8], internal=1),
        operations(posted[:100], [64, 64, 4096]),
        operations(posted[100:], [64, 4096, 64]),  # 100 is a third of an iteration more than 99
    ]
    found = trial(tmp_path, records)
    measure = found.measure()
    assert measure is not None
    assert (measure.kind, measure.block, len(measure.pattern)) == ("operations", 15, 3)
    assert str(measure) == "blocks of 15 operations of the first rank"
    assert found.count(measure) == 38
    assert found.step_ns(measure, 20) == 50 * MS


def test_the_operations_of_a_groups_opening_are_no_steps(tmp_path: Path) -> None:
    # The opening posts 100 operations within a microsecond; an iteration posts two in 40 ms.
    opening = operations(list(range(100)), [64])
    posted = [MS + 40 * MS * (k // 2) + MS * (k % 2) for k in range(80)]
    found = trial(tmp_path, [opening, operations(posted, [64, 4096])])
    measure = Measure(kind="operations", block=2, pattern=((1, 0, -1, 64, 1), (1, 0, -1, 4096, 1)))
    assert found.count(measure) == 38
    assert found.step_ns(measure, 5) == 40 * MS
    early = trial(tmp_path / "early", [opening])
    assert early.count(measure) == 0


def test_operations_that_do_not_repeat_measure_nothing(tmp_path: Path) -> None:
    found = trial(tmp_path, [operations(list(range(0, 600 * MS, MS)), list(range(4, 2404, 4)))])
    assert found.measure() is None


def test_operations_do_not_count_while_a_wrapper_has_taken_no_step(tmp_path: Path) -> None:
    repeating = operations(list(range(0, 600 * MS, MS)), [64])
    assert trial(tmp_path, [repeating, setting("group_bytes", "")]).measure() is None


@pytest.mark.parametrize(
    ("origins", "has", "ended"),
    [
        (("default", "default"), True, False),
        (("default", "trial"), True, True),
        (("argument",), False, False),
        ((), False, False),
    ],
)
def test_the_librarys_own_trial_is_known_from_the_settings(
    tmp_path: Path, origins: tuple[str, ...], has: bool, ended: bool
) -> None:
    records = [setting("group_bytes", "4B", origin) for origin in origins]
    found = trial(tmp_path, [*records, step(0, MS)])
    assert (found.has_trial(), found.tried()) == (has, ended)


def test_missing_records_and_opened_groups_are_told(tmp_path: Path) -> None:
    found = trial(
        tmp_path,
        [operations([1], [4], lost=3)],
        [
            GroupOpened(rank=1, time_ns=0, size=2),
            Gap(rank=1, time_ns=0, lost=2, reason="No space left on device"),
        ],
    )
    assert found.problems() == [
        "no record of 3 operations",
        "2 records missing: No space left on device",
    ]
    assert found.opened() == [1]
