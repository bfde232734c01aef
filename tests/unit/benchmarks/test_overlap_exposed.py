"""Tests of the targets of the benchmark overlap-exposed-time."""

from collections.abc import Iterator
from types import ModuleType

import pytest
from benchmark_modules import modules_of


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """Provide the benchmark's modules by name."""
    with modules_of("overlap-exposed-time", "cases", "performer", "results") as found:
        yield found


def against_gloo(benchmark: ModuleType, seconds: dict[str, list[float]]) -> dict[str, object]:
    """Return the targets against gloo after rounds of real computation, as (measured, met).

    `seconds` has the time of a step of each contestant, one for each round.
    """
    turn = benchmark.performer.Turn
    results = benchmark.results.Results()
    for name, rounds in seconds.items():
        for step_s in rounds:
            of_rank = turn(step_s=step_s, main_cpu_s=0, cpu_s=0, wake_ups=0, wire_bytes=0)
            results.record(benchmark.cases.REAL, name, [of_rank])
    return {
        target.name.partition(":")[0]: (target.measured, target.met)
        for target in results.targets()
        if target.name.endswith("best bucket")
    }


def test_pcco_is_compared_with_the_best_bucket_of_gloo(benchmark: ModuleType) -> None:
    seconds = {
        "alone": [1.0, 2.0],
        "PCCO over slackline": [4.0, 5.0],
        "DDP over gloo, 25 MB": [9.0, 9.0],
        "DDP over gloo, 2 MB": [3.0, 4.0],
        "blocking over slackline": [2.0, 3.0],
    }
    found = against_gloo(benchmark, seconds)
    assert found.pop("real at 1 Gbit/s") == (1.5, False)
    assert found == dict.fromkeys((f"{x}x at 1 Gbit/s" for x in ("0.5", "1", "2")), (None, None))


def test_an_equal_exposed_time_meets_the_target(benchmark: ModuleType) -> None:
    seconds = {"alone": [1.0], "PCCO over slackline": [3.0], "DDP over gloo, 2 MB": [3.0]}
    assert against_gloo(benchmark, seconds)["real at 1 Gbit/s"] == (1.0, True)
