"""Tests of jobs on labs that were slow before: every tool names the fault, and nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_SLACKLINE = [sys.executable, "-c", "import sys; from slackline.cli import main; sys.exit(main())"]
_JOB = Path(__file__).parents[3] / "benchmarks" / "diagnosis" / "start_job.py"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("fault", "begin"),
    [
        ("nic 2.0 rate 20Mbit", "NIC 0 of host 2: it carries "),
        ("link 0>1 loss 3%", "link 0>1: it loses "),
        ("link 1-2 delay 30ms", "link 1-2: its delay is longer, "),
    ],
)
def test_a_fault_from_the_start_is_named_by_every_tool(
    tmp_path: Path, fault: str, begin: str
) -> None:
    kept = tmp_path / "kept"
    lab = ["--lab", "--hosts", "4", "--rate", "200Mbit", "--fault", fault, "--keep", str(kept)]
    done = subprocess.run(
        [*_SLACKLINE, "run", *lab, str(_JOB), "15"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "SLACKLINE_RAILS": "tcp"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"slackline run: cause: {begin}" in done.stderr
    (cause,) = json.loads(_asked("why", "--json", kept))["causes"]
    assert cause["sentence"].startswith(begin)
    assert ", since the start; " in cause["sentence"]
    (shown,) = json.loads(_asked("top", "--json", kept))["causes"]
    assert shown["sentence"] == cause["sentence"]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("nic 2.0 rate 20Mbit", "NIC 0 of host 2: look at the NIC"),
        ("link 0>1 loss 3%", "link 0>1: look at the cables"),
        ("", ""),
    ],
)
def test_doctor_names_the_same_part_before_a_job(tmp_path: Path, fault: str, told: str) -> None:
    script = tmp_path / "check.py"
    script.write_text(
        "import sys\nfrom slackline.cli import main\n"
        'sys.exit(main(["doctor", "--cluster", "--rails", "tcp"]))\n'
    )
    lab = ["--lab", "--hosts", "4", "--rate", "200Mbit", *(["--fault", fault] if fault else [])]
    done = subprocess.run(
        [*_SLACKLINE, "run", *lab, str(script)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "SLACKLINE_RAILS": "tcp"},
        capture_output=True,
        text=True,
        check=False,
    )
    advice = [line for line in done.stdout.splitlines() if line.startswith("mend: between ranks:")]
    assert len(advice) == bool(fault), done.stdout + done.stderr
    assert all(told in line for line in advice)


def _asked(command: str, form: str, directory: Path) -> str:
    words = [*_SLACKLINE, command, form, str(directory)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout
