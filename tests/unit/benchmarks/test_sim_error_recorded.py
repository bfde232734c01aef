"""Tests of sim-error's comparisons with recorded measurements."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from benchmark_modules import modules_of

from slackline.errors import UsageError

PAUSE_US = 50


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """Provide the benchmark's modules by name."""
    with modules_of("sim-error", "cases", "predictions", "recorded", "results") as found:
        yield found


def row(part: str, case: str, time_ps: int, **values: Any) -> dict[str, Any]:
    times = dict.fromkeys(("median_us", "p10_us", "p90_us"), time_ps / 1e6)
    return {"part": part, "case": case, **times, "rounds": 3, "pause_us": PAUSE_US, **values}


def recorded(path: Path, benchmark: ModuleType, *further: dict[str, Any]) -> Path:
    """Write the calibration's rows as a network of 190 Mbit/s and 20 us would give them."""
    predictions, cases = benchmark.predictions, benchmark.cases
    network = predictions.Calibration(rate_bps=190 * 10**6, latency_ps=20_000_000)
    rows = [
        row(
            cases.CALIBRATION,
            str(cell),
            predictions.simulated_ps(cell, network, PAUSE_US * 10**6),
        )
        for cell in (cases.SHORT, cases.LONG)
    ]
    path.write_text(json.dumps({"rows": [*rows, *further]}))
    return path


def test_recorded_cases_are_compared_with_new_simulations(
    benchmark: ModuleType, tmp_path: Path
) -> None:
    predictions, cases = benchmark.predictions, benchmark.cases
    network = predictions.Calibration(rate_bps=190 * 10**6, latency_ps=20_000_000)
    ring, star = cases.QUICK_CELLS[0], cases.STAR_CELLS[0]
    model = cases.MODELS[0]
    ring_ps = predictions.simulated_ps(ring, network, PAUSE_US * 10**6)
    star_ps = predictions.simulated_ps(star, network, 0)
    step_ps = predictions.simulated_step_ps(model, cases.PCCO, network)
    path = recorded(
        tmp_path / "a.json",
        benchmark,
        row(cases.COLLECTIVES, str(ring), ring_ps * 2, repeat_percent=1.5),
        {**row(cases.AGGREGATOR, str(star), star_ps), "pause_us": 0},
        row(cases.TRAINING, f"PCCO, {model.name}", step_ps),
        {"part": cases.PIPELINES, "skipped": "not asked for"},
    )
    found, notes = benchmark.recorded.compare_recorded([path])
    assert notes == ["a.json: calibration 190.00 Mbit/s, 20.0 us a cable"]
    assert [each.part for each in found] == [cases.COLLECTIVES, cases.AGGREGATOR, cases.TRAINING]
    assert [each.error_percent for each in found] == pytest.approx([-50, 0, 0], abs=0.01)
    assert found[0].row().values["repeat_percent"] == 1.5
    assert found[0].row().values["pause_us"] == PAUSE_US
    again = recorded(tmp_path / "b.json", benchmark, row(cases.COLLECTIVES, str(ring), ring_ps * 4))
    found, _ = benchmark.recorded.compare_recorded([path, again], cases.COLLECTIVES)
    assert [each.error_percent for each in found] == pytest.approx([-75], abs=0.01)


def test_a_file_that_is_no_recorded_run_is_refused(benchmark: ModuleType, tmp_path: Path) -> None:
    compare = benchmark.recorded.compare_recorded
    with pytest.raises(UsageError) as raised:
        compare([tmp_path / "none.json"])
    assert str(raised.value) == f"{tmp_path}/none.json cannot be read: No such file or directory"
    path = tmp_path / "a.json"
    for text in ("{", "[]", '{"rows": 3}', "{}"):
        path.write_text(text)
        with pytest.raises(UsageError) as raised:
            compare([path])
        assert str(raised.value) == f"{path} is not the JSON of a run of sim-error"
    path.write_text('{"rows": []}')
    with pytest.raises(UsageError) as raised:
        compare([path])
    assert str(raised.value) == f"{path} lacks the calibration's case 'ring, 2 hosts, 0.25 KiB'"
    recorded(path, benchmark, row("collectives", "ring, 5 hosts, 1 KiB", 1))
    with pytest.raises(UsageError) as raised:
        compare([path])
    said = f"{path} has a case that does not exist: collectives, 'ring, 5 hosts, 1 KiB'"
    assert str(raised.value) == said
    case = "ring, 4 hosts, 1024 KiB"
    recorded(path, benchmark, row("collectives", case, 0))
    with pytest.raises(UsageError) as raised:
        compare([path])
    said = f"{path}: median_us of collectives, {case!r} must be a positive number, not 0.0"
    assert str(raised.value) == said
