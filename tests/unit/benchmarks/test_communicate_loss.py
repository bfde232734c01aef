"""Tests of the communicate-loss benchmark's logic: the losses, the ratios and the targets."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from benchmark_modules import modules_of


@pytest.fixture
def benchmark() -> Iterator[ModuleType]:
    """Provide the benchmark's modules that load no library."""
    with modules_of("communicate-loss", "cases", "results") as found:
        yield found


def targets_of(results: Any) -> dict[str, tuple[float | None, bool | None]]:
    return {each.name: (each.measured, each.met) for each in results.targets()}


def test_without_measurements_every_target_is_skipped(benchmark: ModuleType) -> None:
    results = benchmark.results.Results()
    results.skipped["lab-1g"] = "a lab needs root"
    found = targets_of(results)
    assert set(found.values()) == {(None, None)}
    assert [row.skipped for row in results.rows()] == ["a lab needs root"]
    assert results.notes() == ["lab-1g: a lab needs root"]


def test_the_losses_of_both_types_are_compared_seed_by_seed(benchmark: ModuleType) -> None:
    results, reached = benchmark.results.Results(), benchmark.results.Reached
    figures = {
        ("digits", 0): ((0.20, 0.970), (0.22, 0.960)),
        ("digits", 1): ((0.21, 0.960), (0.20, 0.962)),
        ("gpt", 0): ((2.00, 0.4), (2.06, 0.4)),
        ("gpt", 1): ((3.00, 0.4), (3.03, 0.4)),
    }
    for (model, seed), pair in figures.items():
        for kind, (held_out, accuracy) in zip(("fp32", "bf16"), pair, strict=True):
            results.reached[model, seed, kind] = reached(
                losses=[9.0, *[held_out - 0.1] * 20], held_out=held_out, accuracy=accuracy
            )
    found = targets_of(results)
    points, met = found["digits: right answers with fp32 less those with bf16, percentage points"]
    assert points == pytest.approx((1.0 - 0.2) / 2)
    assert met
    ratio, met = found["gpt: held-out loss with bf16 / with fp32"]
    assert ratio == pytest.approx((1.03 + 1.01) / 2)
    assert not met
    first = results.rows()[0]
    assert first.labels == {"part": "digits", "seed": 0, "type": "fp32", "ranks": 4}
    assert first.values == {
        "steps": 21,
        "loss": 0.1,
        "held_out_loss": 0.2,
        "accuracy_percent": 97.0,
    }


def test_steps_and_bytes_are_compared_round_by_round(benchmark: ModuleType) -> None:
    results, steps = benchmark.results.Results(), benchmark.results.Steps()
    steps.seconds = {"fp32": [1.8, 4.0, 1.7], "bf16": [1.0, 2.0, 1.0]}
    steps.sent = {"fp32": [100e6, 100e6, 100e6], "bf16": [50e6, 53e6, 55e6]}
    results.steps["lab-200m"] = steps
    found = targets_of(results)
    assert found["lab-200m: step with fp32 / with bf16"] == (pytest.approx(1.8), True)
    assert found["lab-200m: bytes on the wire with bf16 / with fp32"] == (
        pytest.approx(0.53),
        False,
    )
    assert found["lab-1g: step with fp32 / with bf16"] == (None, None)
    rows = {row.labels["type"]: row.values for row in results.rows()}
    assert rows["bf16"] == {"step_ms": 1000.0, "sent_mb": 53.0, "rounds": 3}


def test_where_no_wire_is_no_bytes_are_told(benchmark: ModuleType) -> None:
    results, steps = benchmark.results.Results(), benchmark.results.Steps()
    steps.seconds = {"fp32": [1.0], "bf16": [1.25]}
    results.steps["host-4"] = steps
    assert steps.bytes_ratio() is None
    assert steps.gain() == 0.8
    assert all("sent_mb" not in row.values for row in results.rows())
    assert len(results.tables()) == 3


def test_the_conversion_pays_up_to_the_rate_at_which_it_takes_what_it_saves(
    benchmark: ModuleType,
) -> None:
    results = benchmark.results.Results()
    for size in benchmark.cases.SIZES_MB:
        results.converted[size] = (1e-3 * size, 2e-3 * size)
    # Four ranks send 3/4 of a MB less through each port for each MB of fp32, in 3 ms.
    name = "rate of a port up to which the conversion pays, Gbit/s"
    assert targets_of(results)[name] == (pytest.approx(2.0), True)
    assert {row.values["pays_below_gbps"] for row in results.rows()} == {2.0}
