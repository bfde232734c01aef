"""Tests of the sim-error benchmark's logic: the calibrations, the errors, the targets."""

from collections.abc import Iterator
from types import ModuleType

import pytest
from benchmark_modules import modules_of


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """Provide the benchmark's modules by name."""
    with modules_of(
        "sim-error",
        "cases",
        "predictions",
        "pipelines",
        "delegated_cases",
        "cuts",
        "results",
        "main",
    ) as found:
        yield found


@pytest.mark.parametrize(("rate_bps", "latency_ps"), [(190_123_456, 21_000_000), (200 * 10**6, 0)])
def test_a_calibration_finds_the_network_that_two_cells_come_from(
    benchmark: ModuleType, rate_bps: int, latency_ps: int
) -> None:
    cases, predictions = benchmark.cases, benchmark.predictions
    real = predictions.Calibration(rate_bps=rate_bps, latency_ps=latency_ps)
    pause_ps = 70_000_000
    short, long = (
        predictions.Fitted(
            time_ps=predictions.simulated_ps(cell, real, pause_ps), pause_ps=pause_ps
        )
        for cell in (cases.SHORT, cases.LONG)
    )
    found = predictions.calibrate(short, long)
    assert found.rate_bps == pytest.approx(rate_bps, rel=1e-6)
    assert found.latency_ps == pytest.approx(latency_ps, abs=2000)
    for cell in cases.QUICK_CELLS:
        wanted = predictions.simulated_ps(cell, real)
        assert predictions.simulated_ps(cell, found) == pytest.approx(wanted, rel=1e-5)


def test_the_calibration_s_cells_are_not_judged(benchmark: ModuleType) -> None:
    cases = benchmark.cases
    assert not {cases.SHORT, cases.LONG} & {*cases.CELLS, *cases.STAR_CELLS, *cases.QUICK_CELLS}
    assert len(cases.CELLS) == 25
    pipelines, cuts = benchmark.pipelines, benchmark.cuts
    assert pipelines.FITTED not in pipelines.PIPELINES
    assert {each.shape.stages for each in pipelines.PIPELINES} == {4, 8}
    assert len({str(each) for each in pipelines.PIPELINES}) == 2 * 2 * 4
    assert cuts.FITTED not in cuts.CUTS
    assert {cut.cell.hosts for cut in cuts.CUTS} == {4}
    delegated = benchmark.delegated_cases
    assert delegated.FITTED not in delegated.DELEGATED
    placements = {each.hosts for each in delegated.DELEGATED}
    assert placements == {(0, 1, 0, 1), (0, 0, 1, 1), (0, 1, 2, 3)}
    assert len({str(each) for each in delegated.DELEGATED}) == 3 * 2 * 2


def test_the_further_time_of_a_copy_is_found_and_ranks_of_a_host_share_its_nic(
    benchmark: ModuleType,
) -> None:
    cases = benchmark.delegated_cases
    real = benchmark.predictions.Calibration(rate_bps=200 * 10**6, latency_ps=10**8)
    measured_s = cases.simulated_ps(cases.FITTED, real, 123_456_789) / 1e12
    assert cases.found_copy_ps([[measured_s]], real) == pytest.approx(123_456_789, abs=2)

    def simulated_ms(hosts: tuple[int, ...]) -> float:
        case = cases.Delegated(schedule="1f1b", hosts=hosts)
        return cases.simulated_ps(case, real, 0) / 1e9

    # A message takes a NIC 11 ms, and a microbatch 30 ms of each stage: where three of a NIC's
    # messages belong to a microbatch, the NIC is the bottleneck; within a host there is none.
    assert simulated_ms((0, 0, 0, 0)) < simulated_ms((0, 0, 1, 1)) < simulated_ms((0, 1, 2, 3))
    assert simulated_ms((0, 1, 0, 1)) > simulated_ms((0, 1, 2, 3))


def test_an_error_is_that_of_the_simulated_time_beside_the_repeatability(
    benchmark: ModuleType,
) -> None:
    results = benchmark.results
    one = results.Comparison.of_lives(
        part="collectives", case="a", lives_s=[[0.08, 0.1, 0.12], [0.11]], simulated_s=0.126
    )
    row = one.row()
    assert row.labels == {"part": "collectives", "case": "a"}
    assert row.values["median_us"] == 105_000
    assert row.values["error_percent"] == pytest.approx(20)
    assert row.values["repeat_percent"] == pytest.approx(10)
    once = results.Comparison.of_lives(
        part="collectives", case="b", lives_s=[[0.1]], simulated_s=0.09
    )
    assert "repeat_percent" not in once.row().values
    fitted = results.Comparison.of_lives(
        part="calibration", case="c", lives_s=[[0.1]], simulated_s=0.2
    )
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


@pytest.mark.parametrize("turn_us", [0, 250])
def test_the_time_of_an_instruction_is_found_from_a_pipeline_of_two_stages(
    benchmark: ModuleType, turn_us: int
) -> None:
    pipelines = benchmark.pipelines
    turn_ps = turn_us * 10**6
    seconds = pipelines.simulated_ps(pipelines.FITTED, turn_ps) / 1e12
    assert pipelines.found_turn_ps([[seconds], [seconds]]) == pytest.approx(turn_ps, abs=2)


def test_a_simulated_pipeline_takes_the_time_of_its_last_stage(benchmark: ModuleType) -> None:
    """Add an F of each earlier stage to the F, B and W of all microbatches on the last stage."""
    pipelines, ms = benchmark.pipelines, benchmark.predictions.PS_PER_MS
    turn_ps = 10**8
    found = pipelines.simulated_ps(pipelines.FITTED, turn_ps)
    assert found == (1 + 3 * 12) * (10 * ms + turn_ps)
    for pipeline in pipelines.PIPELINES:
        shape = pipeline.shape
        whole = (shape.stages - 1 + 3 * shape.microbatches) * 10 * ms
        if not pipeline.capped:
            # The first activation comes later; no later message is waited for.
            late = sum(delay_ms for _, delay_ms in pipeline.delays_ms) * ms
            assert pipelines.simulated_ps(pipeline, 0) == whole + late, str(pipeline)
        elif not pipeline.delays_ms:
            assert pipelines.simulated_ps(pipeline, 0) == whole, str(pipeline)


def test_a_simulated_limit_of_memory_makes_a_slow_link_cost_more(benchmark: ModuleType) -> None:
    pipelines, ms = benchmark.pipelines, benchmark.predictions.PS_PER_MS
    slow = [each for each in pipelines.PIPELINES if 60 in dict(each.delays_ms).values()]
    found = {(each.shape.stages, each.capped): pipelines.simulated_ps(each, 0) for each in slow}
    assert found[4, True] >= found[4, False] + 20 * ms
    assert found[8, True] >= found[8, False] + 20 * ms


def test_after_a_simulated_failure_the_rest_takes_twice_as_long(benchmark: ModuleType) -> None:
    cuts, predictions = benchmark.cuts, benchmark.predictions
    calibration = predictions.Calibration(rate_bps=benchmark.cases.RATE_BPS, latency_ps=10**7)
    cell, ms = cuts.FITTED.cell, predictions.PS_PER_MS
    unharmed = predictions.simulated_ps(cell, calibration)
    for cut_ms in (50, 250):
        cut = cuts.Cut(cell=cell, cut_ms=cut_ms)
        found = cuts.simulated_ps(cut, calibration, 100 * ms)
        assert found == pytest.approx(cut_ms * ms + 2 * (unharmed - cut_ms * ms), rel=0.03)


@pytest.mark.parametrize("resend_ms", [100, 200, 1500])
def test_the_time_until_frames_are_sent_again_is_found_from_two_hosts(
    benchmark: ModuleType, resend_ms: int
) -> None:
    cuts, predictions = benchmark.cuts, benchmark.predictions
    calibration = predictions.Calibration(rate_bps=benchmark.cases.RATE_BPS, latency_ps=10**7)
    resend_ps = resend_ms * predictions.PS_PER_MS
    seconds = cuts.simulated_ps(cuts.FITTED, calibration, resend_ps) / 1e12
    found = cuts.found_resend_ps([[seconds], [2 * seconds], [seconds]], calibration)
    assert found == pytest.approx(resend_ps, abs=2)
    assert cuts.resend_note(found) == f"nic-cut: frames are sent again after {resend_ms}.0 ms"


def test_a_failure_without_a_visible_wait_is_reported_as_such(benchmark: ModuleType) -> None:
    cuts, predictions = benchmark.cuts, benchmark.predictions
    calibration = predictions.Calibration(rate_bps=benchmark.cases.RATE_BPS, latency_ps=10**7)
    seconds = cuts.simulated_ps(cuts.FITTED, calibration, 0) / 1e12
    assert cuts.found_resend_ps([[seconds]], calibration) == 0
    said = "nic-cut: the failure on two hosts shows no time until frames are sent again"
    assert cuts.resend_note(0) == said


def test_a_quick_run_measures_one_part(benchmark: ModuleType) -> None:
    cases, main = benchmark.cases, benchmark.main
    assert main.parts_of(main.Options(quick=False, json=False)) == cases.PARTS
    assert main.parts_of(main.Options(quick=True, json=False)) == (cases.COLLECTIVES,)
    asked = main.Options(quick=True, json=False, part=cases.NIC_CUT)
    assert main.parts_of(asked) == (cases.NIC_CUT,)
