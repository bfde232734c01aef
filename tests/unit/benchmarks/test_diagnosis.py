"""Tests of the diagnosis benchmark: simulated jobs write what real ranks write, and are named."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType

import pytest
from benchmark_modules import modules_of

KINDS = ("link", "nic", "switch", "host", "rank", "loader", "dead", None)


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """Provide the benchmark's modules by name."""
    with modules_of("diagnosis", "scenarios", "simulated") as found:
        yield found


def test_the_scenarios_are_fixed_and_have_all_kinds_in_turns(benchmark: ModuleType) -> None:
    drawn = benchmark.scenarios.draw(240)
    assert tuple(each.kind for each in drawn[:8]) == KINDS
    assert all(each.plan.faults for each in drawn if each.kind in KINDS[:3])
    shown = repr([(each.words, each.name, each.factor, each.law) for each in drawn])
    assert hashlib.sha256(shown.encode()).hexdigest()[:16] == "e4ba13704ee2b402"


def test_a_slow_rank_gets_its_name_and_the_same_job_gets_it_again(benchmark: ModuleType) -> None:
    scenario = next(each for each in benchmark.scenarios.draw(8) if each.kind == "rank")
    outcome = benchmark.simulated.diagnosed(scenario)
    assert outcome.first() == ("rank", scenario.name)
    ((named_ns, cause),) = outcome.named
    assert 0 < named_ns - outcome.start_ns < 5 * 10**9
    assert cause.ranks == (scenario.rank,)
    assert benchmark.simulated.diagnosed(scenario) == outcome


@pytest.mark.slow
@pytest.mark.parametrize("number", range(16))
def test_a_fault_of_each_kind_gets_its_name_and_no_other(
    benchmark: ModuleType, number: int
) -> None:
    scenario = benchmark.scenarios.draw(16)[number]
    outcome = benchmark.simulated.diagnosed(scenario)
    expected = [] if scenario.kind is None else [(scenario.kind, scenario.name)]
    assert [(cause.kind, cause.name) for _, cause in outcome.named] == expected


@pytest.mark.slow
@pytest.mark.parametrize("law", ["quiet", "jitter", "noise", "bursts"])
def test_five_minutes_of_a_healthy_job_get_no_name(benchmark: ModuleType, law: str) -> None:
    healthy = replace(benchmark.scenarios.HEALTHY, law=law)
    assert benchmark.simulated.diagnosed(healthy, 300 * 10**9).named == ()
