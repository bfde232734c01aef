"""Tests of the command `slackline run`: real ranks, their output, their exit codes, and signals."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from waiting import until

from slackline import predict
from slackline._process_start import started

_SLACKLINE = [sys.executable, "-c", "import sys; from slackline.cli import main; sys.exit(main())"]

_HEAD = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
"""

_SLEEPER = """
open(f"pid-{os.getpid()}", "w").close()
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    def write(body: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text(_HEAD + body)
        return path

    return write


def _start(
    *arguments: object, directory: Path, ranks: int = 3, **variables: str
) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    return subprocess.Popen(
        [*_SLACKLINE, "run", "--ranks", str(ranks), *map(str, arguments)],
        cwd=directory,
        env=environment | {"TMPDIR": str(directory), "XDG_RUNTIME_DIR": "", **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _run(
    *arguments: object, directory: Path, ranks: int = 3, **variables: str
) -> tuple[int, str, str]:
    process = _start(*arguments, directory=directory, ranks=ranks, **variables)
    out, err = process.communicate(timeout=110)
    return process.returncode, out, err


def _alive(pid: int) -> bool:
    return started(pid) is not None


def _pids(directory: Path, what: str = "pid") -> list[int]:
    return [int(path.name.removeprefix(f"{what}-")) for path in directory.glob(f"{what}-*")]


@contextmanager
def _sleeping(
    script: Path, *options: str, ranks: int = 3
) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Start a job whose ranks all sleep, and yield it with their process ids. Afterwards none may
    be alive."""
    process = _start(*options, script, directory=script.parent, ranks=ranks)
    try:
        until(lambda: len(_pids(script.parent)) == ranks, "the ranks start")
        yield process, _pids(script.parent)
        until(lambda: not any(map(_alive, _pids(script.parent))), "the ranks leave")
    finally:
        process.kill()
        process.communicate()
        for pid in filter(_alive, _pids(script.parent)):
            os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True)
class Ended:
    """A job that ended without an error before its fault began, and whose output was kept. The job
    had one rank more than the machine has cores, and its program was a module of a package."""

    ranks: int
    code: int
    out: str
    err: str
    kept: Path


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    folder = tmp_path_factory.mktemp("ended")
    package, kept, ranks = folder / "job", folder / "kept", len(os.sched_getaffinity(0)) + 1
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "model.py").write_text("WIDTH = 3\n")
    (package / "train.py").write_text(
        _HEAD + "from .model import WIDTH\n"
        "print(rank, sys.argv[1:], os.environ['WORLD_SIZE'], os.environ['OMP_NUM_THREADS'])\n"
        "assert os.environ['SLACKLINE_PLAN'] == 'ring'\n"
        "assert os.environ['SLACKLINE_TIMEOUT'] == '20s'\n"
    )
    (folder / "job.toml").write_text('ranks = 7\nplan = "ring"\ntimeout = "40s"\n')
    asked = ("--fault", "rank 1 kill from 1h", "--keep", kept, "--config", "job.toml")
    served = ("--metrics-listen", "127.0.0.1:0")
    options = (*asked, *served, "--timeout", "20s", "-m", "job.train", "--ranks", "9", "-x")
    return Ended(ranks, *_run(*options, directory=folder, ranks=ranks, SLACKLINE_PLAN="mesh"), kept)


def test_rank_0_speaks_and_arguments_reach_the_module(ended: Ended) -> None:
    assert (ended.code, ended.out) == (0, f"0 ['--ranks', '9', '-x'] {ended.ranks} 1\n")
    assert "no steps in the telemetry: no rank has called an optimizer over slackline" in ended.err


def test_a_module_is_named_as_in_the_command(ended: Ended) -> None:
    assert f"{ended.ranks} ranks of -m job.train on " in ended.err
    kept = predict.read_job(ended.kept)
    assert kept is not None
    assert (kept.script, kept.module, kept.folder) == ("job.train", True, str(ended.kept.parent))


def test_options_win_over_the_file_of_settings_and_the_file_wins_over_variables(
    ended: Ended,
) -> None:
    # The script itself checks the plan and the timeout that it got, and the options its ranks.
    assert ended.code == 0
    assert "job.toml sets plan to 'ring', in place of SLACKLINE_PLAN=mesh" in ended.err
    assert "sets timeout" not in ended.err


def test_more_ranks_than_cores_get_one_thread_each_and_are_told(ended: Ended) -> None:
    assert ended.out.endswith(" 1\n")
    assert "OMP_NUM_THREADS=1 for each rank, as there are more ranks than cores" in ended.err


def test_everything_is_kept_on_request(ended: Ended) -> None:
    assert f"output and telemetry of all ranks: {ended.kept}\n" in ended.err
    texts = {file.read_text() for file in ended.kept.rglob("stdout.log")}
    said = f"['--ranks', '9', '-x'] {ended.ranks} 1\n"
    assert texts == {f"{rank} {said}" for rank in range(ended.ranks)}


def test_the_address_of_the_metrics_is_told(ended: Ended) -> None:
    told = r"^slackline run: metrics for Prometheus at http://127\.0\.0\.1:\d+/metrics$"
    assert len(re.findall(told, ended.err, re.MULTILINE)) == 1


def test_faults_of_a_job_that_opens_no_group_are_told_not_to_have_occurred(ended: Ended) -> None:
    assert (
        "slackline run: the job ended before its ranks had opened a group: no fault with a time "
        "occurred\n"
    ) in ended.err


@pytest.mark.parametrize(
    ("end", "code", "last"),
    [
        ("sys.exit(7)", 7, "from rank 2"),
        pytest.param("sys.exit('wrong ' + 'weights')", 1, "wrong weights", marks=pytest.mark.slow),
    ],
)
def test_a_rank_s_exit_code_passes_through_with_its_last_words(
    script: Callable[[str], Path], end: str, code: int, last: str
) -> None:
    path = script(
        "print('from rank', rank)\n"
        "open(f'printed {rank}', 'w').close()\n"
        "if rank == 1:\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    open('deaf', 'w').close()\n"
        "if rank == 2:\n"
        "    while not all(map(os.path.exists, ['deaf', 'printed 0'])):\n"
        "        time.sleep(0.01)\n"
        f"    {end}\n"
        "time.sleep(600)"
    )
    found, out, err = _run("--shutdown-timeout", "1s", path, directory=path.parent)
    assert (found, out) == (code, "from rank 0\n")
    assert f"slackline run: rank 2 exited with code {code}\n" in err
    assert "slackline run: rank 1 had not ended 1s after SIGTERM and had to be killed" in err
    assert re.findall(r"^rank 2 \| .*$", err, re.M) == [f"rank 2 | {last}"]


@pytest.mark.slow
def test_a_mistake_that_all_ranks_make_is_shown_once(script: Callable[[str], Path]) -> None:
    path = script(
        "print('usage: no such flag', file=sys.stderr, flush=True)\n"
        "open(f'told-{rank}', 'w').close()\n"
        "while not all(os.path.exists(f'told-{each}') for each in range(3)):\n"
        "    time.sleep(0.01)\n"
        "sys.exit(2)"
    )
    code, _, err = _run(path, directory=path.parent)
    assert code == 2
    assert err.count("no such flag") == 1


@pytest.mark.slow
def test_a_rank_s_own_error_is_named_before_those_of_its_peers(
    script: Callable[[str], Path],
) -> None:
    path = script(
        "import atexit, threading, torch, torch.distributed as dist\n"
        "# Handlers run in reverse order: slackline leaves, then the process waits for SIGTERM.\n"
        "if rank == 1:\n"
        "    atexit.register(threading.Event().wait)\n"
        "dist.init_process_group('slackline')\n"
        "dist.barrier()\n"
        "if rank == 1:\n"
        "    raise ValueError('wrong weights')\n"
        "dist.all_reduce(torch.ones(4))\n"
    )
    code, _, err = _run("--timeout", "20s", path, directory=path.parent, ranks=2)
    assert code == 1
    said = "slackline run: rank 1 was killed by SIGTERM after ValueError: wrong weights"
    assert said in err.splitlines()


@pytest.mark.slow
def test_a_killed_rank_is_named_and_nobody_outlives_it(script: Callable[[str], Path]) -> None:
    with _sleeping(script(_SLEEPER)) as (process, pids):
        os.kill(pids[0], signal.SIGKILL)
        _, err = process.communicate(timeout=110)
        assert process.returncode == 1
        assert re.search(r"^slackline run: rank \d was killed by SIGKILL$", err, re.M), err


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_signal_ends_all_ranks_and_one_that_ignores_it_is_cut_off(
    script: Callable[[str], Path], number: signal.Signals
) -> None:
    path = script("if rank == 1:\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + _SLEEPER)
    with _sleeping(path, "--shutdown-timeout", "1s") as (process, _):
        (announced,) = path.parent.glob("slackline-*/jobs/*.json")
        process.send_signal(number)
        out, err = process.communicate(timeout=110)
        assert process.returncode == 128 + number
        assert out == "up\n"
        assert f"slackline run: {number.name}: the ranks have 1s to end" in err
        assert (
            "slackline run: rank 1 had not ended 1s after SIGTERM and had to be killed "
            "(--shutdown-timeout)\n"
        ) in err
        assert f"ended by {number.name}; all ranks have left\n" in err
        assert "Traceback" not in err
        assert not announced.exists()
    assert not list(path.parent.glob("slackline-run-*"))


def test_ranks_that_save_get_one_signal_and_a_second_one_to_the_command_kills_them(
    script: Callable[[str], Path],
) -> None:
    """Signal the command and torchrun, as systemd does, and then both once more."""
    path = script(
        "def save(*_):\n"
        "    with open(f'asked-{os.getpid()}', 'a') as file:\n"
        "        print('SIGTERM', file=file, flush=True)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "def saves():\n"
        "    while True:\n"
        "        time.sleep(600)\n"
        "open(f'pid-{os.getpid()}', 'w').close()\n"
        "saves()\n"
    )
    with _sleeping(path, ranks=2) as (process, pids):
        torchrun = _torchrun_of(pids)
        # Python calls the handlers of waiting signals in the order of their numbers, so the command
        # must have taken SIGTERM before SIGINT is sent: it then asks the ranks to end.
        process.send_signal(signal.SIGTERM)
        asked = [path.parent / f"asked-{pid}" for pid in pids]
        until(lambda: all(each.exists() for each in asked), "the ranks are asked to end")
        for _ in range(4):
            os.kill(torchrun, signal.SIGTERM)

        def ended() -> bool:
            process.send_signal(signal.SIGINT)
            return process.poll() is not None

        until(ended, "the command has killed the ranks and ended")
        _, err = process.communicate(timeout=110)
        assert not any(map(_alive, pids))
        assert process.returncode == 128 + signal.SIGTERM
        assert "slackline run: SIGINT came again: all ranks are killed\n" in err
        assert "had not ended" not in err
        assert [each.read_text() for each in asked] == ["SIGTERM\n"] * 2


@pytest.mark.slow
def test_a_job_without_standard_streams_on_a_directory_that_is_removed_runs(
    script: Callable[[str], Path],
) -> None:
    path = script(
        "import shutil\n"
        "print('out', flush=True)\n"
        "shutil.rmtree('kept')\n"
        "print('more', flush=True)\n"
        "open('ran', 'w').close()\n"
    )
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    command = [*closed, *_SLACKLINE, "run", "--ranks", "1", "--keep", "kept", str(path)]
    assert subprocess.run(command, cwd=path.parent, check=False, timeout=110).returncode == 0
    assert (path.parent / "ran").exists()


def test_ranks_leave_when_the_command_is_killed(script: Callable[[str], Path]) -> None:
    with _sleeping(script(_SLEEPER)) as (process, _):
        process.kill()


def _torchrun_of(pids: list[int]) -> int:
    parents = {int(Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[1]) for pid in pids}
    return parents.pop() if len(parents) == 1 else pytest.fail(f"{parents} are torchrun")


def test_ranks_and_their_processes_leave_when_torchrun_is_killed(
    script: Callable[[str], Path],
) -> None:
    """Check four ranks. Ranks 0 and 1 ignore SIGTERM, and rank 0 is also stopped. Ranks 2 and 3
    have each started a process, rank 2 in a session of its own."""
    path = script(
        "import subprocess\n"
        "if rank < 2:\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "else:\n"
        "    sleeper = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "    child = subprocess.Popen(sleeper, start_new_session=rank == 2)\n"
        "    open(f'child-{child.pid}', 'w').close()\n"
        "if rank == 0:\n"
        "    open(f'still-{os.getpid()}', 'w').close()\n" + _SLEEPER
    )
    with _sleeping(path, "--shutdown-timeout", "1", ranks=4) as (process, pids):
        (still,) = _pids(path.parent, "still")
        os.kill(still, signal.SIGSTOP)
        os.kill(_torchrun_of(pids), signal.SIGKILL)
        _, err = process.communicate(timeout=110)
        started = _pids(path.parent, "child")
        assert len(started) == 2
        assert [pid for pid in pids + started if _alive(pid)] == []
        assert "slackline run: torchrun was killed by SIGKILL; its ranks have been ended\n" in err
        assert "slackline run: ranks 0, 1 had not ended 1s after SIGTERM and had to be " in err
        assert process.returncode == 1


def test_what_a_script_leaves_behind_ends_with_the_job(script: Callable[[str], Path]) -> None:
    path = script(
        "import subprocess\n"
        "def leave(seconds):\n"
        "    orphan = ['sh', '-c', f'sleep {seconds} >&2 & echo $!']\n"
        "    return int(subprocess.run(orphan, stdout=subprocess.PIPE).stdout)\n"
        "open(f'short-{leave(0)}', 'w').close()\n"
        "open(f'long-{leave(600)}', 'w').close()\n"
        "sys.stdin = open('go')\n"  # a pipe, which blocks until the test has looked
    )
    os.mkfifo(path.parent / "go")
    process = _start(path, directory=path.parent, ranks=1)
    until(lambda: len(_pids(path.parent, "long")) == 1, "the rank has left both behind")
    short, long = _pids(path.parent, "short")[0], _pids(path.parent, "long")[0]
    until(lambda: not Path(f"/proc/{short}").exists(), "who has ended is reaped meanwhile")
    assert _alive(long)
    (path.parent / "go").write_text("")
    _, err = process.communicate(timeout=110)
    assert (process.returncode, _alive(long)) == (0, False), err
    assert not list(path.parent.glob("slackline-run-*"))


@pytest.mark.slow
def test_faults_count_from_the_opening_of_the_group(script: Callable[[str], Path]) -> None:
    path = script("""
import torch.distributed as dist
time.sleep(5)  # a long start-up, in which a fault "from 4s" would be over
dist.init_process_group("slackline")
opened = last = time.monotonic()
while rank == 1 and last < opened + 60:
    now = time.monotonic()
    if now - last > 2:
        print(last - opened > 0, flush=True)
        break
    last = now
    time.sleep(0.01)
dist.barrier()
dist.destroy_process_group()
""")
    fault = ("--fault", "rank 1 stop from 4s for 2500ms", "--keep", path.parent / "kept")
    code, _, err = _run(*fault, path, directory=path.parent, ranks=2)
    assert code == 0, err
    said = {file.read_text() for file in (path.parent / "kept").rglob("1/stdout.log")}
    assert said == {"True\n"}


def test_torchrun_s_options_restart_ranks_and_show_all_of_them(
    script: Callable[[str], Path], tmp_path: Path
) -> None:
    path = script(
        "count = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "print('start', count, flush=True)\n"
        "if count == 0 and rank == 1:\n    sys.exit(5)\n"
    )
    options = ("--max-restarts", "1", "--monitor-interval=0.1", "--tee", "3", "--role", "a")
    code, out, _ = _run(*options, "--nproc-per-node", "2", path, directory=tmp_path, ranks=2)
    assert code == 0
    assert {"rank 0 | start 1", "rank 1 | start 1"} <= set(out.splitlines())


def test_a_command_runs_on_each_rank(tmp_path: Path) -> None:
    options = ("--output", "1", "--no-python")
    code, out, _ = _run(*options, "printenv", "RANK", directory=tmp_path, ranks=2)
    assert (code, out) == (0, "1\n")
