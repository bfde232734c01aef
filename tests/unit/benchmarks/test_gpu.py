"""The GPU benchmark: how stages end, and that all their code runs without a device."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmark_modules import modules_of

MAIN = Path(__file__).resolve().parents[3] / "benchmarks" / "gpu" / "main.py"

ENDINGS = ("ends", "hangs", "fails", "ends again")


@pytest.fixture(scope="module")
def gpu() -> Any:
    with modules_of("gpu", "rank", "results", "runner", "stages") as found:
        yield found


def stage(gpu: Any, name: str, limit_s: float) -> Any:
    return gpu.stages.Stage(name=name, module="gpu_stages", ranks=2, limit_s=limit_s, shown="")


def test_a_stage_that_hangs_is_aborted_with_its_stacks_and_the_next_ones_run(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu.runner, "_AFTER_FAILURE_S", 0.5)
    runner = gpu.runner.Runner(tmp_path, cpu=True)
    well = runner.run(stage(gpu, "ends", 60), left_s=60)  # torch is imported for all of them.
    assert (well.ended, well.failed, well.said) == (("0", "0"), False, "")
    hung = runner.run(stage(gpu, "hangs", 8), left_s=60)
    assert hung.failed
    assert hung.ended == ("0", "hung")
    assert "rank 1 ended with hung" in hung.said
    log = (tmp_path / "hangs" / "rank1.log").read_text()
    assert "Fatal Python error: Aborted" in log
    assert "in wait_for_ever" in log
    failed = runner.run(stage(gpu, "fails", 60), left_s=60)
    assert failed.ended == ("hung", "1")
    assert failed.seconds < 50
    assert "ValueError: rank 1 has had enough" in failed.said
    again = runner.run(stage(gpu, "ends again", 60), left_s=60)
    assert not again.failed
    figures = gpu.results.read(runner.results)
    assert [each["stage"] for each in figures].count("ends again") == 4
    begun = {(each["stage"], each["rank"]) for each in figures if each["figure"] == "begun"}
    assert begun == {(name, rank) for name in ENDINGS for rank in range(2)}
    targets = {each.name: each for each in gpu.results.targets(figures, [hung, failed], cpu=True)}
    assert targets["stages with a rank that failed or hung"].measured == 2
    assert targets["wrong results"].met is None


def test_delays_are_shorter_on_the_cpu(gpu: Any) -> None:
    blocked = next(each for each in gpu.stages.STAGES if each.name == "blocked link")
    assert blocked.variables(cpu=False)["SLACKLINE_FAULTS"] == "link 0-1 delay 200ms"
    assert blocked.variables(cpu=True)["SLACKLINE_FAULTS"] == "link 0-1 delay 5ms"


def benchmark(*options: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, str(MAIN), *options],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env=environment,
    )


def test_without_a_device_every_stage_is_skipped(gpu: Any) -> None:
    ended = benchmark("--json")
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert [each["stage"] for each in report["rows"]] == [each.name for each in gpu.stages.STAGES]
    assert {each["skipped"] for each in report["rows"]} == {
        "no CUDA device; --cpu runs the stages' code without one"
    }
    assert all(each["met"] is None for each in report["targets"])


def test_all_stages_run_on_the_cpu_and_give_right_results(gpu: Any, tmp_path: Path) -> None:
    ended = benchmark("--cpu", "--json", "--out", str(tmp_path / "out"))
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    met = {each["name"]: each["met"] for each in report["targets"]}
    assert met.pop("products beside a link that blocks, over those alone") is None
    assert set(met.values()) == {True}, report["targets"]
    run = {each["stage"] for each in report["rows"] if "figure" in each}
    assert run == {each.name for each in gpu.stages.STAGES if each.also_on_cpu}
    logs = sorted((tmp_path / "out").glob("*/rank*.log"))
    assert len(logs) == sum(each.ranks for each in gpu.stages.STAGES if each.also_on_cpu)
