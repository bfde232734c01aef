"""Tests of the forecast benchmark: its traces are fixed."""

import hashlib
from collections.abc import Iterator
from types import ModuleType

import pytest
from benchmark_modules import modules_of


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """Provide the benchmark's modules by name."""
    with modules_of("pipeline-forecast", "traces") as found:
        yield found


def test_the_traces_are_those_of_the_published_table(benchmark: ModuleType) -> None:
    shown = repr([(each.name, each.links, each.iterations) for each in benchmark.traces.TRACES])
    digest = hashlib.sha256(shown.encode()).hexdigest()
    assert digest[:16] == "5763819c0d6ff3b6"


def test_a_delay_holds_from_its_start_to_the_next_start(benchmark: ModuleType) -> None:
    traces = {each.name: each for each in benchmark.traces.TRACES}
    periodic = traces["every 40 s for 5 s"]
    assert [periodic.delays_ms(ms) for ms in (0, 39_999, 40_000, 44_999, 45_000)] == [
        (0, 0, 0),
        (0, 0, 0),
        (0, 0, 30),
        (0, 0, 30),
        (0, 0, 0),
    ]
    assert periodic.changes(2, 40_000, 80_001) == ((45_000, 0), (80_000, 30))
    recorded = traces["1,200 iterations"]
    assert recorded.delays_ms(350) == (0, 0, 50, 50, 0, 0, 50)
    assert recorded.delays_ms(1199) == (0,) * 7
