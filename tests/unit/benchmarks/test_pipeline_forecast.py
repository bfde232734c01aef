"""Tests of the forecast benchmark: its traces are fixed, its contestants run the real policy."""

import hashlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from benchmark_modules import modules_of


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """Provide the benchmark's modules by name."""
    with modules_of("pipeline-forecast", "traces", "drive") as found:
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


@pytest.fixture
def trained(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str, int], Any]:
    """Provide a function that trains on the first seconds of a trace by Adaptra's policy."""
    traces = {each.name: each for each in benchmark.traces.TRACES}

    def train(name: str, mode: str, seconds: int) -> Any:
        monkeypatch.setattr(benchmark.drive, "SECONDS", seconds)
        return benchmark.drive.Training(traces[name], "adaptra", mode).run()

    return train


def test_random_delays_are_reacted_to_as_without_forecasts(
    trained: Callable[[str, str, int], Any],
) -> None:
    react, forecast = (trained("redrawn every 2-20 s", mode, 60) for mode in ("react", "forecast"))
    assert forecast.news == []
    assert (forecast.iterations, forecast.total_ms) == (react.iterations, react.total_ms)
    assert forecast.reasons == react.reasons


def test_periodic_delays_cost_less_when_they_are_foretold(
    trained: Callable[[str, str, int], Any],
) -> None:
    modes = ("none", "react", "forecast", "oracle")
    none, react, forecast, oracle = (trained("every 20 s for 6 s", mode, 130) for mode in modes)
    assert none.mean_ms > react.mean_ms > forecast.mean_ms > oracle.mean_ms
    assert forecast.mean_ms < 0.98 * react.mean_ms
    assert forecast.news[0].startswith("link 2-3: periodic: Every 20")
