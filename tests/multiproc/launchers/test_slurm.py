"""Tests of the batch script for Slurm, under a real controller and two real nodes."""

import os
import sys
from pathlib import Path

import pytest
from slurm_cluster import NODES, Cluster

EXAMPLES = Path(__file__).parents[3] / "examples"
BATCH = EXAMPLES / "launchers" / "slurm.sbatch"
FAIL = """
import signal, sys
from torch import distributed
distributed.init_process_group("slackline")
if distributed.get_rank() == 3:
    sys.exit(7)
signal.pause()
"""
"""A script in which rank 3 fails, and the others wait for a signal of torchrun or Slurm."""
WAIT = """
import os, pathlib, signal
from torch import distributed
distributed.init_process_group("slackline")
mark = pathlib.Path(__file__).with_name(f"rank{distributed.get_rank()}")
mark.with_suffix(".new").write_text(str(os.getpid()))
mark.with_suffix(".new").rename(mark)
signal.pause()
"""
"""A script whose ranks write their process numbers to files, and then wait for a signal."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put `slackline` on the PATH of jobs, as in a terminal with the environment activated."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def submit(slurm: Cluster, script: Path) -> tuple[int, str]:
    """Submit the batch script, wait for the job's end, and return its exit code and output."""
    command = ["sbatch", "--wait", "--output=job.out", str(BATCH), str(script)]
    ended = slurm.run(*command, seconds=200)
    said = slurm.run("cat", "job.out").stdout
    return ended.returncode, said + ended.stderr


def test_the_batch_script_runs_one_job_on_all_nodes(slurm: Cluster) -> None:
    code, said = submit(slurm, EXAMPLES / "first_collective.py")
    assert code == 0, said + slurm.logs()
    ranks = 2 * NODES
    total = ranks * (ranks + 1) / 2
    assert f"sum over {ranks} ranks: {[total] * 4}" in said.splitlines()
    assert "host 0 of 2, host0, has ranks 0 to 1" in said
    assert "host 1 of 2, host1, has ranks 2 to 3; host0 shows the output of rank 0" in said


def test_a_failed_rank_fails_the_job_of_slurm(slurm: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "fail.py"
    script.write_text(FAIL)
    code, said = submit(slurm, script)
    assert code != 0, said
    assert "slackline run: rank 3 exited with code 7" in said


def test_a_cancelled_job_leaves_no_rank(slurm: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "wait.py"
    script.write_text(WAIT)
    submitted = slurm.run("sbatch", "--parsable", "--output=job.out", str(BATCH), str(script))
    assert submitted.returncode == 0, submitted.stderr
    job = submitted.stdout.strip()
    marks = [tmp_path / f"rank{rank}" for rank in range(2 * NODES)]

    def open_group() -> bool:
        return all(mark.exists() for mark in marks)

    def no_rank() -> bool:
        return not any(Path(f"/proc/{mark.read_text()}").exists() for mark in marks)

    def cancelled() -> bool:
        return "JobState=CANCELLED" in slurm.run("scontrol", "show", "job", job).stdout

    slurm.wait_until(open_group)
    assert not no_rank()
    assert slurm.run("scancel", job).returncode == 0
    slurm.wait_until(no_rank)
    slurm.wait_until(cancelled)
