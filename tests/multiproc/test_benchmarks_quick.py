"""Tests that `--quick --json` of every benchmark ends in time with a complete report."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)
BENCHMARKS = sorted((Path(__file__).resolve().parents[2] / "benchmarks").glob("*/main.py"))
SECONDS = 290
"""The time limit of a benchmark, which takes 3 to 40 s on an idle machine. The limit only serves to
detect a hang."""


def run(main: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(main), "--quick", "--json", *options],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, **environment},
    )


def benchmark(name: str) -> Path:
    return next(main for main in BENCHMARKS if main.parent.name == name)


def asked_of_wire_cost(cell: str, *contestants: str, **environment: str) -> dict[str, Any]:
    """Return the measurements of one cell: its rows by contestant, and the judged targets."""
    options = [word for name in contestants for word in ("--contestant", name)]
    result = run(benchmark("wire-cost"), "--part", cell, *options, **environment)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    rows = [row for row in report["rows"] if row.get("skipped") != "not asked for"]
    assert {f"{row['network']}/{row['size']}" for row in rows} == {cell}
    targets = {each["name"] for each in report["targets"] if each["met"] is not None}
    return {"rows": {row["contestant"]: row for row in rows}, "targets": targets}


@pytest.mark.slow
@pytest.mark.parametrize("main", BENCHMARKS, ids=lambda main: main.parent.name)
def test_a_quick_run_ends_in_time_with_one_json_object(main: Path) -> None:
    result = run(main)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert {"machine", "commit", "rows", "targets"} <= set(report)
    assert {"cpu", "cores", "kernel", "python", "torch", "date"} <= set(report["machine"])
    assert report["rows"]
    assert report["targets"]
    for target in report["targets"]:
        assert {"name", "target", "measured", "met"} <= set(target)
        assert (target["met"] is None) == (target["measured"] is None), target["name"]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="a lab needs root")
@pytest.mark.parametrize("part", ["training", "aggregator", "pipelines", "delegated", "nic-cut"])
def test_a_part_of_sim_error_is_measured_and_simulated_alone(part: str) -> None:
    result = run(benchmark("sim-error"), "--part", part)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    rows = [row for row in report["rows"] if not row.get("skipped")]
    assert {row["part"] for row in rows} == {"calibration", part}
    for row in rows:
        assert row["simulated_us"] > 0
        error = 100 * (row["simulated_us"] / row["median_us"] - 1)
        assert row["error_percent"] == pytest.approx(error, abs=0.02)
    targets = [each for each in report["targets"] if not each["name"].startswith("not fitted")]
    assert len(targets) == 2
    assert all(target["measured"] is not None for target in targets)


@pytest.mark.slow
def test_a_cell_of_training_step_is_measured_alone_and_read_again(tmp_path: Path) -> None:
    main, cell = benchmark("training-step"), "host-2/clipping"
    result = run(main, "--part", cell)
    assert result.returncode == 0, result.stderr
    file = tmp_path / "clipping.json"
    file.write_text(result.stdout)
    again = run(main, "--measured", str(file))
    assert again.returncode == 0, again.stderr
    report = json.loads(again.stdout)
    rows = [row for row in report["rows"] if "skipped" not in row]
    assert {f"{row['network']}/{row['model']}" for row in rows} == {cell}
    (pcco,) = [row for row in rows if row["contestant"] == "PCCO"]
    assert pcco["trial"].startswith("groups" if pcco["group_bytes"] else "one parameter")
    assert ("one update" in pcco["trial"].split(":")[0]) == (not pcco["deferred"])
    measured = {each["name"] for each in report["targets"] if each["measured"] is not None}
    assert measured == {
        f"{cell}: DDP over {backend}, best settings / PCCO" for backend in ("gloo", "slackline")
    }


@pytest.mark.slow
def test_the_costs_of_a_training_step_are_divided(tmp_path: Path) -> None:
    costs = benchmark("training-step").with_name("costs.py")
    # Without perf and py-spy on the path, processor time and calls are all that is measured.
    result = run(costs, PATH=str(tmp_path))
    assert result.returncode == 0, result.stderr
    rows = {row["contestant"]: row for row in json.loads(result.stdout)["rows"]}
    assert list(rows) == [
        *("alone", "PCCO", "PCCO, groups of 1 MiB", "DDP over slackline", "DDP over gloo")
    ]
    parts = ("forward_us", "backward_us", "update_us", "clear_us", "other threads_us")
    for row in rows.values():
        assert all(row[part] >= 0 for part in parts)
        assert row["step_us"] == pytest.approx(sum(row[part] for part in parts), abs=1)
        assert "system_calls" not in row
    assert "python_calls of hooks and arrivals" not in rows["alone"]
    assert rows["PCCO"]["python_calls of hooks and arrivals"] > 0
    assert rows["PCCO"]["choice"]


def test_a_failing_rank_ends_the_allreduce_benchmark_with_its_error() -> None:
    result = run(benchmark("allreduce-latency-bandwidth"), SLACKLINE_ORDER="sideways")
    assert result.returncode != 0
    assert result.stdout == ""
    assert "an order must be one of auto, rank, any, not 'sideways'" in result.stderr


def test_a_wire_cost_cell_without_tools_compares_what_there_is(tmp_path: Path) -> None:
    who = ("slackline-tcp", "gloo", "openmpi", "ring")
    found = asked_of_wire_cost("loopback-2/64KiB", *who, PATH=str(tmp_path))
    rows = found["rows"]
    assert rows["openmpi"]["skipped"] == "mpirun is not installed"
    assert rows["ring"]["skipped"] == "c++ is not installed"
    for contestant in who[:2]:
        assert rows[contestant]["rounds"] == 3
        assert rows[contestant]["time_ms"] > 0
        assert rows[contestant]["user_ns"] + rows[contestant]["system_ns"] > 0
        # Each rank sends its half of 64 KiB twice; a packet on loopback holds at most 64 KiB.
        assert rows[contestant]["packets"] >= 2
    assert found["targets"] == {"loopback-2/64KiB: processor time a byte, slackline-tcp / gloo"}


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="a lab needs root")
def test_a_wire_cost_cell_in_a_lab_never_beats_the_wire() -> None:
    rows = asked_of_wire_cost("lab-200m-2/1MiB", "openmpi", "ring")["rows"]
    missing = [tool for tool in ("mpirun", "mpicc") if shutil.which(tool) is None]
    if missing:
        assert rows["openmpi"]["skipped"] == f"{missing[0]} is not installed"
    else:
        assert 0 < rows["openmpi"]["wire_percent_p90"] < 102
    # The rate limiter, a token bucket, lets some bytes pass at once when an operation starts.
    assert 0 < rows["ring"]["wire_percent_p90"] < 102
    # A packet of 1500 bytes carries 1448 of the 2 MiB; joined packets carry up to 64 KiB.
    assert 32 < rows["ring"]["packets"] < 4000
