"""Tests of the jobs of new processes of the benchmark group-opening."""

from collections.abc import Iterator
from types import ModuleType

import pytest
from benchmark_modules import modules_of


@pytest.fixture(scope="module")
def fresh() -> Iterator[ModuleType]:
    """Provide the benchmark's module of new processes."""
    with modules_of("group-opening", "fresh") as found:
        yield found.fresh


def test_a_job_of_new_processes_opens_a_group_and_tells_its_times(fresh: ModuleType) -> None:
    times = fresh.run_job("slackline", 2)
    assert times["whole"] == pytest.approx(times["opening"] + times["all_reduce"])
    assert 0 < times["all_reduce"] < times["whole"] < times["since exec"]
    assert times["processor"] > 0


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_job_with_its_error(fresh: ModuleType) -> None:
    message = r"(?s)^nothing: rank \d has ended .*Unknown backend type nothing"
    with pytest.raises(fresh.JobError, match=message):
        fresh.run_job("nothing", 2)


def test_the_targets_are_ratios_of_the_same_round_and_missing_sizes_are_skipped(
    fresh: ModuleType,
) -> None:
    def sample(*seconds: float) -> object:
        jobs = [dict.fromkeys((*fresh.PARTS, "processor"), each) for each in seconds]
        return fresh.FreshSample(jobs=jobs)

    found = {
        2: {"slackline": sample(1.0), "gloo": sample(1.0)},
        4: {"slackline": sample(3.0, 1.0, 8.0), "gloo": sample(1.0, 1.0, 4.0)},
        32: None,
    }
    assert [(each.measured, each.met) for each in fresh.fresh_targets(found)] == [
        (2.0, False),
        (None, None),
    ]
    assert [row.skipped for row in fresh.fresh_rows(found)][-2:] == [
        "no time for these jobs in a quick run"
    ] * 2
    ranks_and_names = [row[:2] for row in fresh.fresh_cells(found)]
    assert ranks_and_names == [["4", "slackline"], ["4", "gloo"], ["2", "slackline"], ["2", "gloo"]]
