"""Tests of the trial on recorded step times: its choice is nearly always nearly the best."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from benchmark_modules import modules_of

RECORDED = Path(__file__).with_name("step_times.json.gz")
"""Rows of the benchmark overlap-trial-regret: step times of all variants, on a busy machine and on
an idle one."""


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """Provide the benchmark's modules by name."""
    with modules_of("overlap-trial-regret", "replay") as found:
        yield found


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return json.loads(gzip.decompress(RECORDED.read_bytes()))


def recordings(benchmark: ModuleType, rows: list[dict]) -> list:
    return [benchmark.replay.Series.of_row(str(k), row) for k, row in enumerate(rows)]


def test_the_choice_is_within_3_percent_of_the_best_in_95_of_100_trials(
    benchmark: ModuleType, rows: list[dict]
) -> None:
    found = benchmark.replay.regrets(recordings(benchmark, rows), 1000, seed=1)
    assert len(found) == 1000
    assert min(found) == 1
    assert sum(each <= 1.03 for each in found) >= 950


def test_a_replay_chooses_a_variant_that_was_always_twice_as_fast(
    benchmark: ModuleType, rows: list[dict]
) -> None:
    row = rows[0]
    names = [key for key in row if key.startswith(("one parameter each", "groups of "))]
    fast = {**row, names[2]: [time // 2 for time in row[names[0]]]}
    others = {name: row[names[0]] for name in names if name != names[2]}
    series = benchmark.replay.Series.of_row("", {**fast, **others})
    for step in range(0, 2000, 100):
        assert benchmark.replay.replay(series, step).chosen == 2
