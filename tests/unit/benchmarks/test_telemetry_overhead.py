"""Tests of the telemetry-overhead benchmark's logic: the ratio of the turns and the targets."""

from collections.abc import Iterator
from types import ModuleType

import pytest
from benchmark_modules import modules_of


@pytest.fixture
def main() -> Iterator[ModuleType]:
    """Provide the benchmark's main module."""
    with modules_of("telemetry-overhead", "cases", "performer", "main") as found:
        yield found.main


def test_the_overhead_is_the_median_of_the_ratios_of_both_turns(main: ModuleType) -> None:
    found = main.Found()
    found.elapsed = {"off": [1.0, 2.0, 4.0], "on": [1.01, 2.0, 4.4]}
    found.processor = {"off": [2.0, 2.0, 2.0], "on": [2.0, 2.1, 2.2]}
    found.operations, found.steps = 21, 6
    cell = main.CELLS[0]
    (row,) = main.rows_of([(cell, found)])
    assert row.labels == {"cell": "few long operations", "ranks": 2}
    assert row.values["overhead_percent"] == 1.0
    assert (row.values["overhead_low_percent"], row.values["overhead_high_percent"]) == (0.0, 10.0)
    assert row.values["processor_percent"] == 5.0
    assert row.values["operations_per_step"] == 3.5
    assert row.values["step_off_us"] == 2e6
    (target,) = main.targets_of([(cell, found)])
    assert (target.target, target.met) == (0.5, False)
    assert target.name == "time that telemetry adds to a step, few long operations, %"
    found.elapsed["on"] = [1.0, 2.005, 3.9]
    assert main.targets_of([(cell, found)])[0].met
