"""Tests of the hooks of a process: uncaught exceptions, threads, signals, and forked children."""

import subprocess
import sys
from pathlib import Path

import pytest

from slackline.history import read_dumps, read_reports
from slackline.records.failures import Dump, Event, dump_file_of

_HEAD = """
import os, signal, sys, threading
from pathlib import Path
from slackline.records.failures import reporter_of

sys.excepthook = lambda kind, *_: print("before:", kind.__name__, file=sys.stderr)
reporter_of(Path(sys.argv[1]), 5)
"""


def _run(directory: Path, body: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _HEAD + body, str(directory)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def _events(directory: Path) -> tuple[Event, ...]:
    reports, problems = read_reports(directory)
    assert problems == []
    return reports[5].events


def _dump(directory: Path) -> Dump:
    dumps, problems = read_dumps(directory)
    assert problems == []
    return dumps[5]


def test_an_uncaught_exception_is_reported_and_reaches_the_former_hook(tmp_path: Path) -> None:
    ended = _run(tmp_path, "def f():\n    raise ValueError('wrong')\nf()\n")
    assert (ended.returncode, ended.stderr) == (1, "before: ValueError\n")
    (event,) = _events(tmp_path)
    assert (event.kind, event.errors[0].type) == ("exception", "ValueError")
    assert [frame.function for frame in event.errors[0].frames] == ["f", "<module>"]
    assert not dump_file_of(tmp_path, 5).exists()


def test_an_exception_that_ends_a_thread_is_told_apart(tmp_path: Path) -> None:
    body = """
def work():
    raise OSError("full")
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    ended = _run(tmp_path, body)
    assert ended.returncode == 0
    assert "OSError: full" in ended.stderr
    (event,) = _events(tmp_path)
    assert (event.kind, event.errors[0].message) == ("thread", "full")


@pytest.mark.parametrize(("name", "handled"), [("SIG_DFL", False), ("handler", True)])
def test_sigterm_leaves_the_stacks_and_calls_the_former_handler(
    name: str, handled: bool, tmp_path: Path
) -> None:
    body = """
def load():
    os.kill(os.getpid(), signal.SIGTERM)
load()
"""
    before = "import signal, sys\nhandler = lambda *_: sys.exit(7)\n"
    before += f"SIG_DFL = signal.SIG_DFL\nsignal.signal(signal.SIGTERM, {name})\n"
    command = [sys.executable, "-c", before + _HEAD + body, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == (7 if handled else -15)
    dump = _dump(tmp_path)
    assert dump.terminated
    assert dump.threads[0].main
    assert [frame.function for frame in dump.threads[0].frames] == ["load", "<module>"]


def test_a_fatal_signal_leaves_the_stacks(tmp_path: Path) -> None:
    ended = _run(tmp_path, "import ctypes\nctypes.string_at(0)\n")
    assert ended.returncode == -11
    dump = _dump(tmp_path)
    assert (dump.fatal, dump.terminated) == ("Segmentation fault", False)


def test_the_end_of_a_forked_child_is_not_the_end_of_the_rank(tmp_path: Path) -> None:
    body = """
child = os.fork()
if not child:
    os.kill(os.getpid(), signal.SIGTERM)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
other = os.fork()
if not other:
    raise ValueError("in a child")
print(code, os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
print(len(Path(sys.argv[1], "rank-00005.stacks.txt").read_text().splitlines()))
"""
    ended = _run(tmp_path, body)
    assert (ended.returncode, ended.stdout) == (0, "-15 1\n1\n")
    assert list(tmp_path.iterdir()) == []
