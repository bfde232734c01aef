"""Tests of `slackline doctor` with real ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slackline.sim import HostCalibration

_SLACKLINE = [sys.executable, "-c", "import sys; from slackline.cli import main; sys.exit(main())"]


def _doctor(*arguments: str, directory: Path, **environment: str) -> tuple[int, str, str]:
    process = subprocess.run(
        [*_SLACKLINE, "doctor", *arguments],
        env=os.environ | {"TMPDIR": str(directory)} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    return process.returncode, process.stdout, process.stderr


def test_every_direction_is_measured_over_the_rail_that_was_asked_for(tmp_path: Path) -> None:
    code, out, err = _doctor(
        "--ranks", "2", "--rails", "tcp", "--seconds", "200ms", "--json", directory=tmp_path
    )
    assert err == ""
    found = json.loads(out)
    levels = {finding["level"] for finding in found["findings"]["this machine"]}
    assert code == (1 if "mend" in levels else 0)
    assert list(found["transfers"]) == ["tcp"]
    measured = found["transfers"]["tcp"]
    assert sorted((each["source"], each["target"]) for each in measured) == [
        (0, 1),
        (1, 0),
    ]
    assert all(each["bytes_per_second"] > 0 and each["latency_ns"] > 0 for each in measured)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_ranks_that_cannot_meet_are_something_to_mend(tmp_path: Path) -> None:
    code, out, _ = _doctor(
        "--ranks", "2", "--rails", "tcp", "--json", directory=tmp_path, SLACKLINE_INTERFACE="nic9"
    )
    assert code == 1
    found = {each["name"]: each for each in json.loads(out)["findings"]["this machine"]}
    assert found["interfaces"]["level"] == "mend"
    assert found["transfers over tcp"]["value"] == "failed"
    assert "interface 'nic9' has no address" in found["transfers over tcp"]["advice"]


@pytest.mark.slow
def test_torchrun_starts_it_on_every_host(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["--no-python", *_SLACKLINE, "doctor", "--cluster", "--seconds", "200ms", "--json"]
    done = subprocess.run(
        command,
        env=os.environ | {"TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    found = json.loads(done.stdout)
    (host,) = (where for where in found["findings"] if where != "between ranks")
    levels = {each["level"] for those in found["findings"].values() for each in those}
    assert done.returncode == (1 if "mend" in levels else 0)
    names = {each["name"]: each["value"] for each in found["findings"][host]}
    assert names["cores"].endswith("for 2 ranks")
    assert [len(each) for each in found["transfers"].values()] == [2]


def test_a_file_that_cannot_be_written_is_named_before_any_rank_starts(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "host.json"
    code, out, err = _doctor("--save", str(path), directory=tmp_path)
    assert (code, out) == (2, "")
    assert f"cannot write {path}: No such file or directory" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_costs_of_this_host_are_saved_for_the_simulator(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    code, out, err = _doctor("--save", str(path), "--json", directory=tmp_path)
    assert err == ""
    assert code in (0, 1)
    costs = HostCalibration.parse(path.read_text(), path.name).spreads()
    found = [each["name"] for each in json.loads(out)["findings"]["this machine"]]
    assert [name for name in found if name.startswith("cost ")] == [f"cost {n}" for n in costs]
    assert all(0 < spread.p50 <= spread.p95 for spread in costs.values())
    assert list(tmp_path.iterdir()) == [path]
