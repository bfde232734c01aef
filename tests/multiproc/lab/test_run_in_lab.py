"""Tests of `slackline run --lab`: each rank runs on its own host, under faults, and nothing is left
behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

_SLACKLINE = [sys.executable, "-c", "import sys; from slackline.cli import main; sys.exit(main())"]

_REDUCE = """
import os, socket, sys, torch
from torch import distributed
distributed.init_process_group("gloo")
total = torch.tensor([float(distributed.get_rank() + 1)])
distributed.all_reduce(total)
distributed.destroy_process_group()
if os.environ["RANK"] == "1":
    sys.exit(0)
names = [name for _, name in socket.if_nameindex()]
own = socket.gethostbyname(socket.gethostname())
print(total.item(), names, own, os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"])
"""
_FAIL = """
import os, sys, time
if os.environ["RANK"] == "1":
    sys.exit(7)
time.sleep(600)
"""
_SLEEP = """
import os, time
open(f"pid-{os.environ['RANK']}", "w").write(str(os.getpid()))
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    def write(body: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text(body)
        return path

    return write


def start(script: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*_SLACKLINE, "run", *options, str(script)],
        cwd=script.parent,
        env=os.environ | {"TMPDIR": str(script.parent)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def labs_of(process: subprocess.Popen[str]) -> list[str]:
    """Return the names of the lab's namespaces and folders while they exist."""
    folders = (Path("/run/netns"), Path("/etc/netns"))
    return [
        path.name
        for folder in folders
        if folder.exists()
        for path in folder.glob(f"slackline-{process.pid}-*")
    ]


@pytest.mark.slow
def test_gloo_meets_the_lab_and_its_faults(script: Callable[[str], Path]) -> None:
    options = ("--lab", "--hosts", "2", "--nics", "2", "--rate", "1Gbit")
    fault = ("--fault", "link 0-1 delay 2ms")
    process = start(script(_REDUCE), *options, *fault)
    out, err = process.communicate(timeout=110)
    assert (process.returncode, out) == (0, "3.0 ['lo', 'eth0', 'eth1'] 10.77.0.1 0 1\n"), err
    assert labs_of(process) == []


@pytest.mark.slow
def test_a_failed_rank_is_named_and_the_lab_goes(script: Callable[[str], Path]) -> None:
    process = start(script(_FAIL), "--lab", "--hosts", "2")
    _, err = process.communicate(timeout=110)
    assert process.returncode == 7
    assert "rank 1 exited with code 7\n" in err
    assert labs_of(process) == []


def test_ctrl_c_ends_the_ranks_and_the_lab(script: Callable[[str], Path]) -> None:
    process = start(script(_SLEEP), "--lab", "--hosts", "2")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    assert labs_of(process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=110)
    assert process.returncode == 130
    assert "ended by SIGINT; all ranks have left\n" in err
    assert labs_of(process) == []


def test_a_rank_is_killed_by_its_fault_without_a_lab_too(script: Callable[[str], Path]) -> None:
    fault = ("--fault", "rank 1 kill from 10ms", "--fault-wait", "100ms")
    process = start(script(_SLEEP), "--ranks", "2", *fault)
    _, err = process.communicate(timeout=110)
    assert process.returncode == 1
    assert "faults count from now: ranks 0, 1 opened no group of slackline in the 100 ms " in err
    assert "rank 1 was killed by SIGKILL\n" in err
