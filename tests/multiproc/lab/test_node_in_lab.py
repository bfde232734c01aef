"""Tests of `slackline run --lab --node ethernet`: ranks train through a node on a wire of the lab,
and nothing is left behind."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from waiting import until

# The limit leaves time to compile a circuit on a busy machine.
pytestmark = [pytest.mark.simulates, pytest.mark.timeout(300)]

_SLACKLINE = [sys.executable, "-c", "import sys; from slackline.cli import main; sys.exit(main())"]
_OPTIONS = ("--lab", "--ranks", "2", "--node", "ethernet")

_REDUCE = """
import torch
from torch import distributed
distributed.init_process_group("slackline")
total = torch.full((1000,), float(distributed.get_rank() + 1))
for _ in range(5):
    distributed.all_reduce(total)
if distributed.get_rank() == 0:
    print(total[0].item(), total[999].item(), flush=True)
distributed.destroy_process_group()
"""
_ALONE = "print('alone')"
_IN_SOFTWARE = """
import os, sys, torch
from torch import distributed
distributed.init_process_group("slackline")
distributed.all_reduce(torch.ones(1000))
if os.environ["SLACKLINE_AGGREGATOR"].endswith(":7001"):
    if "fail" in sys.argv:
        sys.exit(9)
    open(os.path.join(os.environ["TMPDIR"], "in software"), "w").close()
    while True:
        distributed.all_reduce(torch.ones(1000))
distributed.destroy_process_group()
"""
_FAIL = """
import os, signal
import torch
from torch import distributed
distributed.init_process_group("slackline")
total = torch.ones(1000)
while True:
    distributed.all_reduce(total)
    if distributed.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
"""
_LOOP = """
import torch
from torch import distributed
distributed.init_process_group("slackline")
total = torch.zeros(1000)
distributed.all_reduce(total)
if distributed.get_rank() == 0:
    print("up", flush=True)
while True:
    distributed.all_reduce(total)
"""
_PASSED = re.compile(
    r"(?P<frames>\d+) frames? by the Ethernet node in (?P<packets>\d+) packets, "
    r"(?P<again>\d+) sent again, (?P<cycles>\d+) simulated cycles; "
    r"hash of its sums (?P<node>[0-9a-f]{16}), of software's (?P<software>[0-9a-f]{16})\n"
)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Provide start(body, *arguments), which runs a script with a node until the test ends."""
    processes = []

    def run(body: str, *arguments: str) -> subprocess.Popen[str]:
        script = tmp_path / "script.py"
        script.write_text(body)
        process = subprocess.Popen(
            [*_SLACKLINE, "run", *_OPTIONS, str(script), *arguments],
            env=os.environ | {"TMPDIR": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.communicate()


def left(process: subprocess.Popen[str]) -> list[str]:
    """Return the lab's namespaces, and the command lines of its node's processes, that exist."""
    found = [path.name for path in Path("/run/netns").glob(f"slackline-{process.pid}-*")]
    return found + [text for text in _commands() if f"main\0{process.pid}\0" in _short(text)]


def _short(text: str) -> str:
    """Return a command line with a mark in place of the program that begins with die_with."""
    return re.sub(r"import sys; from slackline\.cli\._job\._agent [^\0]*", "main", text)


def _commands() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):  # The process has ended meanwhile.
            continue


@pytest.mark.slow
def test_the_ranks_frames_pass_the_node_and_are_counted(start) -> None:
    process = start(_REDUCE)
    out, err = process.communicate(timeout=280)
    assert (process.returncode, out) == (0, "48.0 48.0\n"), err
    found = _PASSED.search(err)
    assert found is not None, err
    assert int(found["frames"]) >= 5
    # Five sums of 4000 bytes in packets of 1 KiB, from two ranks and back.
    assert int(found["packets"]) >= 5 * 4 * 4
    assert int(found["cycles"]) > 1000
    assert found["node"] == found["software"]
    assert "the states at the end were not compared: no rank has trained by " in err
    assert left(process) == []


@pytest.mark.slow
def test_the_example_trains_through_the_node_with_the_bits_of_software(tmp_path: Path) -> None:
    example = Path(__file__).parents[3] / "examples" / "train_digits.py"
    done = subprocess.run(
        [*_SLACKLINE, "run", *_OPTIONS, str(example), "--epochs", "3"],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    found = _PASSED.search(done.stderr)
    assert found is not None, done.stderr
    assert int(found["frames"]) > 33
    # Each rank sends 19.3 MiB in packets of 1 KiB, and gets as many.
    assert int(found["packets"]) > 4 * 19_000
    assert found["node"] == found["software"]
    states = re.search(r"at the end: (\w+) through the node, (\w+) in software\n", done.stderr)
    assert states is not None, done.stderr
    assert re.fullmatch("[0-9a-f]{32}", states[1])
    assert states[1] == states[2]


@pytest.mark.slow
def test_a_run_in_software_that_fails_or_is_ended_leaves_nothing(start, tmp_path: Path) -> None:
    process = start(_IN_SOFTWARE, "fail")
    _, err = process.communicate(timeout=280)
    assert process.returncode == 9, err
    assert _PASSED.search(err)
    assert left(process) == []
    kept = list(tmp_path.glob("slackline-run-*"))  # The output of a failed job.
    assert len(kept) == 1
    process = start(_IN_SOFTWARE)
    until(partial(Path.exists, tmp_path / "in software"), "the job did not run again")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=110)
    assert process.returncode == 130, err
    assert "ended by SIGINT; all ranks have left\n" in err
    assert left(process) == []
    assert list(tmp_path.glob("slackline-run-*")) == kept


@pytest.mark.slow
def test_a_run_without_a_frame_through_the_node_fails(start) -> None:
    process = start(_ALONE)
    _, err = process.communicate(timeout=280)
    assert process.returncode == 1
    assert "no frame has passed the Ethernet node: the ranks ran without it\n" in err
    assert left(process) == []


@pytest.mark.slow
def test_a_killed_rank_is_named_and_the_node_goes(start) -> None:
    process = start(_FAIL)
    _, err = process.communicate(timeout=280)
    assert process.returncode == 1
    assert "rank 1 was killed by SIGKILL\n" in err
    assert _PASSED.search(err)
    assert left(process) == []


@pytest.mark.slow
def test_ctrl_c_ends_the_ranks_and_the_node(start) -> None:
    process = start(_LOOP)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    # The node, its aggregator, and the one in software.
    assert len([text for text in left(process) if "die_with" in text]) == 3
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=110)
    assert process.returncode == 130, err
    assert "ended by SIGINT; all ranks have left\n" in err
    assert left(process) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--node", "ethernt", "--lab"), "--node must be ethernet, not 'ethernt'"),
        (("--node", "ethernet"), "--node ethernet is a host of a lab: add --lab"),
        (("--node", "ethernet", "--lab", "--ranks", "1"), "ports must be 2 to 16, not 1"),
    ],
)
def test_a_wrong_option_is_refused_before_the_lab_is_built(tmp_path: Path, options, said) -> None:
    script = tmp_path / "script.py"
    script.write_text(_ALONE)
    done = subprocess.run(
        [*_SLACKLINE, "run", *options, str(script)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert said in done.stderr


def test_an_aggregator_of_the_environment_and_missing_tools_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_ALONE)
    command = [*_SLACKLINE, "run", *_OPTIONS, str(script)]

    def said(**environment: str) -> str:
        variables = {**os.environ, **environment}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=variables)
        assert done.returncode == 2
        return done.stderr

    assert "unset SLACKLINE_AGGREGATOR (10.0.0.9:7000)" in said(
        SLACKLINE_AGGREGATOR="10.0.0.9:7000"
    )
    assert "Verilator is not installed (Debian: apt install verilator)" in said(PATH="")
