"""Tests of the sim-error benchmark's logic: the calibration, the errors, the targets."""

from collections.abc import Iterator
from types import ModuleType

import pytest
from benchmark_modules import modules_of


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """Provide the benchmark's modules by name."""
    with modules_of("sim-error", "cases", "predictions", "main") as found:
        yield found


@pytest.mark.parametrize(("rate_bps", "latency_ps"), [(190_123_456, 21_000_000), (200 * 10**6, 0)])
def test_a_calibration_finds_the_network_that_two_cells_come_from(
    benchmark: ModuleType, rate_bps: int, latency_ps: int
) -> None:
    cases, predictions = benchmark.cases, benchmark.predictions
    real = predictions.Calibration(rate_bps=rate_bps, latency_ps=latency_ps)
    found = predictions.calibrate(
        predictions.simulated_ps(cases.SHORT, real), predictions.simulated_ps(cases.LONG, real)
    )
    assert found.rate_bps == pytest.approx(rate_bps, rel=1e-6)
    assert found.latency_ps == pytest.approx(latency_ps, abs=2000)
    for cell in cases.QUICK_CELLS:
        wanted = predictions.simulated_ps(cell, real)
        assert predictions.simulated_ps(cell, found) == pytest.approx(wanted, rel=1e-5)


def test_an_error_is_that_of_the_simulated_time(benchmark: ModuleType) -> None:
    cases, predictions = benchmark.cases, benchmark.predictions
    calibration = predictions.Calibration(rate_bps=cases.RATE_BPS, latency_ps=0)
    cells = (cases.SHORT, cases.LONG, *cases.QUICK_CELLS)
    factors = (1.0, 1.0, 0.8, 1.25)
    measured = {
        cell: [predictions.simulated_ps(cell, calibration) / 1e12 * factor]
        for cell, factor in zip(cells, factors, strict=True)
    }
    rows = benchmark.main.rows_of(measured, calibration, "not measured")
    errors = [row.values["error_percent"] for row in rows if row.values]
    assert errors == pytest.approx([0, 0, 25, -20], abs=0.3)
    assert {row.skipped for row in rows if not row.values} == {"not measured"}
    median, worst = benchmark.main.targets_of(rows)
    assert (median.measured, worst.measured) == pytest.approx((22.5, 25), abs=0.3)
    assert (median.met, worst.met) == (False, False)


def test_without_a_lab_nothing_is_measured(benchmark: ModuleType) -> None:
    rows = benchmark.main.rows_of({}, None, "no root")
    assert {row.skipped for row in rows} == {"no root"}
    assert [target.met for target in benchmark.main.targets_of(rows)] == [None, None]
