"""Tests of the scenarios of a published figure, which pipeline-planning draws again."""

from collections.abc import Iterator
from types import ModuleType

import pytest
from benchmark_modules import modules_of


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """Provide the benchmark's modules by name."""
    with modules_of("pipeline-planning", "published_gaps") as found:
        yield found


def test_the_drawn_scenarios_take_the_published_times(benchmark: ModuleType) -> None:
    every = benchmark.published_gaps.published()
    assert len(every) == 100
    again = [each for each in every if each.drawn_again]
    assert len(again) == 90
    for each in [*again[:5], again[50]]:
        assert each.ready_ms() == each.published_ms
    # The published scheduler has rounded times, the optimum has not.
    assert all(each.published_gap > 0.005 for each in again[:5])
    assert all(abs(each.auto_gap()) < 1e-5 for each in again[:5])


def test_results_of_another_run_are_left_out(benchmark: ModuleType) -> None:
    other = [each for each in benchmark.published_gaps.published() if not each.drawn_again]
    assert [(each.rounded.stages, each.base_ms) for each in other] == [(6, 10)] * 5 + [(8, 10)] * 5
    assert other[0].ready_ms() != other[0].published_ms
