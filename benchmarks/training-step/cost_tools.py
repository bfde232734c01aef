"""The tools that watch rank processes from outside: perf counts, and py-spy samples.

Neither is a part of slackline; a figure whose tool is not installed is skipped with that reason.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

SYSTEM_CALLS = "raw_syscalls:sys_enter"
"""The event of the kernel that perf counts: the entry of any system call."""
SAMPLES_A_SECOND = 100
"""The rate of samples: py-spy stops the process for a moment to take one."""


class ToolError(RuntimeError):
    """The error of a tool that is not installed, or that may not watch the rank processes."""


def system_calls(pids: Sequence[int], act: Callable[[], object]) -> int:
    """Return the number of system calls that all threads of some processes make during `act`.

    Raises ToolError if perf is missing or may not count them.
    """
    perf = _tool("perf")
    control, ask = os.pipe()
    told, answer = os.pipe()
    command = [perf, "stat", "--field-separator", ",", "--delay", "-1", "--event", SYSTEM_CALLS]
    command += ["--control", f"fd:{control},{answer}", "--pid", ",".join(map(str, pids))]
    process = subprocess.Popen(
        command, pass_fds=(control, answer), stderr=subprocess.PIPE, text=True
    )
    os.close(control)
    os.close(answer)
    try:
        # perf answers each word, and ends at once without an answer if it may not count.
        if _say(ask, told, "enable"):
            act()
            _say(ask, told, "disable")
            process.send_signal(signal.SIGINT)
        _, words = process.communicate()
    finally:
        process.kill()
        os.close(ask)
        os.close(told)
    return counted(words)


def _say(ask: int, told: int, word: str) -> bool:
    """Send perf a word; return whether perf has answered."""
    try:
        os.write(ask, f"{word}\n".encode())
    except BrokenPipeError:
        return False
    return os.read(told, 64).startswith(b"ack")


def counted(words: str) -> int:
    """Return the count of system calls in perf's output; raise ToolError without a count."""
    for line in words.splitlines():
        fields = line.split(",")
        if len(fields) > 2 and fields[2] == SYSTEM_CALLS and fields[0].isdigit():
            return int(fields[0])
    raise ToolError(f"perf did not count system calls: {words.strip()}")


def samples(pid: int, seconds: int, file: Path, act: Callable[[], object]) -> list[str]:
    """Return py-spy's samples of a process in `seconds`, as lines of a stack and a number.

    `act` gives the process some work, and is called again until the time is over; samples of a
    process that sleeps are left out. `file` is overwritten. Raises ToolError if py-spy is missing
    or may not read the process.
    """
    command = [_tool("py-spy"), "record", "--pid", str(pid), "--duration", str(seconds)]
    command += ["--rate", str(SAMPLES_A_SECOND), "--format", "raw", "--full-filenames"]
    process = subprocess.Popen(
        [*command, "--output", str(file)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while process.poll() is None:
            act()
        _, words = process.communicate()
    finally:
        process.kill()
    if process.returncode != 0:
        raise ToolError(f"py-spy ended with {process.returncode}: {words.strip()}")
    return file.read_text().splitlines()


def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise ToolError(f"{name} is not installed")
    return path
