"""Tests of the sim-error benchmark's logic: the calibration, the errors, the targets."""

from collections.abc import Iterator
from types import ModuleType

import pytest
from benchmark_modules import modules_of


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """Provide the benchmark's modules by name."""
    with modules_of("sim-error", "cases", "predictions", "results", "main") as found:
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


def test_the_calibration_s_cells_are_not_judged(benchmark: ModuleType) -> None:
    cases = benchmark.cases
    assert not {cases.SHORT, cases.LONG} & {*cases.CELLS, *cases.STAR_CELLS, *cases.QUICK_CELLS}
    assert len(cases.CELLS) == 25


def test_an_error_is_that_of_the_simulated_time_beside_the_repeatability(
    benchmark: ModuleType,
) -> None:
    results = benchmark.results
    one = results.Comparison(
        part="collectives", case="a", lives_s=[[0.08, 0.1, 0.12], [0.11]], simulated_s=0.126
    )
    row = one.row()
    assert row.labels == {"part": "collectives", "case": "a"}
    assert row.values["median_us"] == 105_000
    assert row.values["error_percent"] == pytest.approx(20)
    assert row.values["repeat_percent"] == pytest.approx(10)
    once = results.Comparison(part="collectives", case="b", lives_s=[[0.1]], simulated_s=0.09)
    assert "repeat_percent" not in once.row().values
    fitted = results.Comparison(part="calibration", case="c", lives_s=[[0.1]], simulated_s=0.2)
    mean, worst = results.targets_of([one, once, fitted])
    assert (mean.target, mean.measured) == (2.0, pytest.approx(15))
    assert (worst.target, worst.measured, worst.met) == (5.0, pytest.approx(20), False)


def test_without_a_lab_nothing_is_judged(benchmark: ModuleType) -> None:
    targets = benchmark.results.targets_of([])
    assert [target.met for target in targets] == [None, None]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_layers_of_a_model_fill_ddp_s_buckets_exactly(
    benchmark: ModuleType, number: int
) -> None:
    """DDP closes a bucket with the gradient that fills it, the simulator before the next one."""
    cases = benchmark.cases
    buckets, size = [], 0
    for layer in reversed(cases.MODELS[number].layers):
        size += layer.gradient_bytes
        if size >= cases.BUCKET_BYTES:
            buckets.append(size)
            size = 0
    assert (set(buckets), size) == ({cases.BUCKET_BYTES}, 0)


def test_overlap_shortens_a_simulated_step(benchmark: ModuleType) -> None:
    cases, predictions = benchmark.cases, benchmark.predictions
    calibration = predictions.Calibration(rate_bps=cases.RATE_BPS, latency_ps=0)
    for model in cases.MODELS:
        computing_ps = sum(
            (layer.forward_ms + layer.backward_ms) * predictions.PS_PER_MS for layer in model.layers
        )
        pcco, ddp = (
            predictions.simulated_step_ps(model, method, calibration) for method in cases.METHODS
        )
        assert computing_ps < pcco <= ddp
