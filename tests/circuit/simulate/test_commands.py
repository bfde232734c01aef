"""Tests of commands that run side by side: their output, their errors, and interrupts."""

import os
import signal
from pathlib import Path

import pytest

from slackline.circuit.simulate._commands import run_all
from slackline.errors import UsageError


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_outputs_come_in_the_order_of_the_commands(at_once: int) -> None:
    commands = [["sh", "-c", f"echo {number}; echo not read >&2"] for number in range(4)]
    assert run_all(commands, at_once) == ["0\n", "1\n", "2\n", "3\n"]


def test_outputs_longer_than_a_pipe_are_read_from_both_streams() -> None:
    both = "head -c 300000 /dev/zero | tr '\\0' e >&2; head -c 300000 /dev/zero | tr '\\0' o"
    assert run_all([["sh", "-c", both]], 1) == ["o" * 300_000]


def test_commands_run_side_by_side(tmp_path: Path) -> None:
    # Each command waits for the other at a FIFO: one after the other they would never end.
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert run_all([["sh", "-c", f"cat {fifo}"], ["sh", "-c", f"echo met > {fifo}"]], 2) == [
        "met\n",
        "",
    ]


def test_a_command_that_fails_ends_the_others_and_is_quoted(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    endless = ["sh", "-c", f"echo $$ > {fifo}; exec sleep 1000"]
    failing = ["sh", "-c", f"read pid < {fifo}; echo process $pid >&2; exit 3"]
    with pytest.raises(UsageError, match=r"^sh ended with code 3:\nprocess \d+$") as raised:
        run_all([endless, failing], 2)
    with pytest.raises(ProcessLookupError):
        os.kill(int(str(raised.value).split()[-1]), 0)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_interrupt_from_the_first_command_ends_all(tmp_path: Path, count: int) -> None:
    # The first command interrupts this process as early as possible: while later ones are started.
    pids = tmp_path / "pids"
    eager = ["sh", "-c", f"echo $$ >> {pids}; kill -INT {os.getpid()}; exec sleep 1000"]
    later = ["sh", "-c", f"echo $$ >> {pids}; exec sleep 1000"]
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_all([eager, *[later] * (count - 1)], count)
    finally:
        signal.signal(signal.SIGINT, former)
    for pid in map(int, pids.read_text().split()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
