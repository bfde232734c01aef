"""Tests of the command `slackline tune`: real trials, what they write, errors and signals.

The scripts use the engine without torch. Their computation is a sleep whose length depends on a
setting, so that each test knows the fastest setting.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import until

from slackline.cli import main
from slackline.cli._job._config import read_config

_JOBS = Path(__file__).parents[2] / "benchmarks" / "tune-gain" / "jobs"
_SLACKLINE = [sys.executable, "-c", "import sys; from slackline.cli import main; sys.exit(main())"]

_HEAD = f"""
import ctypes, os, sys, time
from datetime import timedelta
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from folder_store import FolderStore
from slackline.env import Environment
from slackline.nic import NativeNic, NicOptions
from slackline.wire import DType, ReduceOp

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
Path(f"pid-{{os.getpid()}}").touch()
folder = Path("store-" + os.environ["TORCHELASTIC_RUN_ID"])
folder.mkdir(exist_ok=True)
limit = timedelta(seconds=60)
environment = Environment.read()
COUNT = 1 << 18
memory = (ctypes.c_float * COUNT)()


def open_group(options):
    nic = NativeNic(options)
    return nic.open_group(FolderStore(folder, limit), rank, size, timeout=limit)


def reduce(group, count):
    at = ctypes.addressof(memory)
    group.all_reduce(at, at, count, DType.FLOAT32, ReduceOp.SUM, blocking=True)
"""

_TRAIN = """
group = open_group(NicOptions.from_env(environment))
seconds = 0.005 if environment.segment == 64 << 10 else 0.2
while True:
    time.sleep(seconds)
    reduce(group, COUNT)
    reduce(group, 1000)
"""

# The trials of plans at the opening of a group take more than 100 operations.
_FEW = """
group = open_group(NicOptions.from_env(environment))
for _ in range(400):
    time.sleep(0.005)
    reduce(group, COUNT)
group.close()
"""

_CHANGING = """
group = open_group(NicOptions.from_env(environment))
for count in range(1, 200):
    reduce(group, count)
group.close()
"""

_FAIL = """
print("the data are missing", file=sys.stderr)
sys.exit(7 if rank == 1 else 0)
"""


_SHORT = ("--steps", "5", "--trials", "1", "--json", "--budget", "10min")
_FIXED = {"SLACKLINE_PLAN": "mesh"}
"""A variable that leaves only the segments open, of which 64 KiB is the first to be tried."""


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    def write(body: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text(_HEAD + body)
        return path

    return write


def _start(
    script: Path, *options: str, directory: Path | None = None, **variables: str
) -> subprocess.Popen[str]:
    """Start the command in `directory`, or in the script's own."""
    where = directory or script.parent
    return subprocess.Popen(
        [*_SLACKLINE, "tune", "--ranks", "2", *options, str(script)],
        cwd=where,
        env=os.environ | {"TMPDIR": str(where), **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _tune(
    script: Path, *options: str, directory: Path | None = None, **variables: str
) -> tuple[int, str, str]:
    process = _start(script, *options, directory=directory, **variables)
    out, err = process.communicate(timeout=500)
    assert _left(directory or script.parent) == []
    return process.returncode, out, err


def _left(directory: Path) -> list[int]:
    """Return the ranks that still run, and check that the trials' files are gone."""
    assert list(directory.glob("slackline-tune-*")) == []
    pids = [int(path.name.removeprefix("pid-")) for path in directory.glob("pid-*")]
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.slow
def test_a_script_that_fails_ends_the_search_with_its_output_and_its_code(
    script: Callable[[str], Path],
) -> None:
    path = script(_FAIL)
    code, out, err = _tune(path)
    assert (code, out) == (7, "")
    assert "rank 1 | the data are missing\n" in err
    assert "slackline tune: rank 1 exited with code 7\n" in err
    assert not (path.parent / "tuned.toml").exists()


def test_an_interrupted_trial_ends_every_rank_and_writes_nothing(
    script: Callable[[str], Path],
) -> None:
    path = script(_TRAIN)
    process = _start(path)
    try:
        until(lambda: len(list(path.parent.glob("pid-*"))) == 2, "the ranks start")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=100)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out) == (130, ""), err
    assert _left(path.parent) == []
    assert err.endswith("ended by SIGINT; all ranks have left, and no file is written\n")
    assert not (path.parent / "tuned.toml").exists()


@pytest.mark.slow
def test_an_interrupted_search_shows_its_trials(script: Callable[[str], Path]) -> None:
    path = script(_TRAIN)
    process = _start(path, "--steps", "5", "--budget", "10min")
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "round 1: defaults: " in line:
                process.send_signal(signal.SIGTERM)
                break
        out, rest = process.communicate(timeout=100)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out) == (143, ""), rest
    assert _left(path.parent) == []
    assert "│ round 1 │ defaults │" in rest
    assert rest.endswith("ended by SIGTERM; all ranks have left, and no file is written\n")
    assert not (path.parent / "tuned.toml").exists()


@pytest.mark.slow
@pytest.mark.timeout(520)
def test_the_fastest_setting_is_found_confirmed_and_used(script: Callable[[str], Path]) -> None:
    path = script(_TRAIN)
    code, out, err = _tune(path, *_SHORT, **_FIXED)
    assert code == 0, err
    result = json.loads(out)
    assert result["settings"] == {"segment": "64KiB"}, err
    assert result["confirmed"]
    assert 2 < result["lowest"] <= result["gain"] <= result["highest"]
    assert result["measure"].startswith("blocks of ")
    stages = [each["stage"] for each in result["trials"]]
    assert stages == ["fresh"] * 6
    text = (path.parent / "tuned.toml").read_text()
    assert "# Gain: the step is shorter by " in text
    config = read_config(path.parent / "tuned.toml")
    assert (config.ranks, config.variables) == (2, {"SLACKLINE_SEGMENT": "64KiB"})


@pytest.mark.slow
@pytest.mark.timeout(520)
@pytest.mark.skipif(os.geteuid() != 0, reason="a lab needs root")
def test_a_job_is_tuned_on_the_hosts_of_a_lab(script: Callable[[str], Path]) -> None:
    note = 'Path(f"net-{os.getpid()}").write_text(os.readlink("/proc/self/ns/net"))\n'
    path = script(note + _TRAIN)
    lab = ("--lab", "--hosts", "2", "--rate", "200Mbit")
    code, out, err = _tune(path, *lab, *_SHORT, **_FIXED)
    assert code == 0, err
    result = json.loads(out)
    assert (result["settings"], result["confirmed"]) == ({"segment": "64KiB"}, True), err
    networks = [each.read_text() for each in path.parent.glob("net-*")]
    assert len(networks) == 2 * (1 + len(result["trials"]))
    assert os.readlink("/proc/self/ns/net") not in networks
    config = read_config(path.parent / "tuned.toml")
    assert config.variables == {"SLACKLINE_SEGMENT": "64KiB"}


@pytest.mark.slow
@pytest.mark.timeout(520)
def test_without_a_gain_the_file_holds_the_defaults_and_says_so(
    script: Callable[[str], Path],
) -> None:
    path = script(_TRAIN.replace("0.005", "0.4"))
    code, out, err = _tune(path, *_SHORT, **_FIXED)
    assert code == 0, err
    result = json.loads(out)
    assert (result["confirmed"], result["settings"]) == (False, {}), err
    assert result["tried"] == {"segment": "64KiB"}
    assert result["highest"] < 1
    text = (path.parent / "tuned.toml").read_text()
    assert "# No confirmed gain: the defaults stay" in text
    config = read_config(path.parent / "tuned.toml")
    assert (config.ranks, config.variables) == (2, {})


@pytest.mark.slow
@pytest.mark.timeout(520)
@pytest.mark.parametrize(
    ("job", "measure", "fixed"),
    [
        ("overlapped", "steps of slackline.overlap", {"group_bytes"}),
        ("pipeline", "steps of slackline.pipeline", set()),
    ],
)
def test_jobs_of_torch_are_tuned_by_their_own_steps(
    job: str, measure: str, fixed: set[str], tmp_path: Path
) -> None:
    path = _JOBS / f"{job}.py"
    code, out, err = _tune(path, *_SHORT, directory=tmp_path)
    assert code == 0, err
    result = json.loads(out)
    assert (result["measure"], result["fixed"].keys()) == (measure, fixed)
    assert [each["stage"] for each in result["trials"]] == ["fresh"] * 6
    assert result["tried"] != {}
    assert all(each["step_ns"] > 0 for each in result["trials"])
    config = read_config(tmp_path / "tuned.toml")
    assert len(config.variables) == (len(fixed) + 1 if result["confirmed"] else 0)


@pytest.mark.slow
def test_a_script_that_ends_early_is_told_how_many_steps_a_trial_needs(
    script: Callable[[str], Path],
) -> None:
    path = script(_FEW)
    code, out, err = _tune(path, "--steps", "500")
    assert (code, out) == (2, "")
    assert err.endswith(
        " steps, and a trial needs 510: let the script run longer, or lower --steps 500\n"
    )
    assert f"slackline: {path} ended after " in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "why"),
    [
        (
            _CHANGING,
            "the operations of rank 0 do not repeat often enough to show a training step",
        ),
        ("", 'no rank has posted an operation in a group of the backend "slackline"'),
    ],
)
def test_a_script_without_steps_is_an_error(
    script: Callable[[str], Path], body: str, why: str
) -> None:
    path = script(body)
    code, out, err = _tune(path)
    assert (code, out) == (2, "")
    assert err.endswith(f"slackline: the steps of {path} cannot be measured: {why}\n")


@pytest.mark.slow
def test_a_budget_that_ends_before_the_first_step_is_to_be_raised(
    script: Callable[[str], Path],
) -> None:
    path = script(_TRAIN)
    code, out, err = _tune(path, "--budget", "1ms")
    assert (code, out) == (2, "")
    assert err.startswith(f"slackline: the steps of {path} cannot be measured: no rank has posted ")
    assert re.search(r"; [\d.]+ m?s have passed: raise --budget 1ms\n$", err)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--ranks", "1"), "ranks must be between 2 and 1024, not 1"),
        (("--trials", "0"), "--trials must be a positive integer, not 0"),
        (("--steps", "0"), "--steps must be a positive integer, not 0"),
        (
            ("--budget", "60"),
            "--budget 60: a duration must be a number and one of ns, us, ms, s, min, h, not '60'",
        ),
        (("--output", "none/tuned.toml"), "there is no directory 'none' for 'none/tuned.toml'"),
        (("--output", "script.py"), "'script.py' exists already: name another file by --output"),
        (("--rate", "1Gbit"), "--rate is an option of a lab: add --lab"),
        (("--hosts", "2"), "--hosts is an option of a lab: add --lab"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_runs(
    options: tuple[str, str],
    message: str,
    script: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = script("")
    monkeypatch.chdir(path.parent)
    assert main(["tune", *options, path.name]) == 2
    assert capsys.readouterr().err == f"slackline: {message}\n"
