"""Programs in C and C++ as contestants, which are compiled at the start and wait between turns.

Each rank is a process that takes turns by the protocol in turns.h. A program that exits, gives a
wrong result or does not answer in time ends the benchmark with the program's own error output.
"""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from _harness.usage import Usage

TURN_TIMEOUT = timedelta(minutes=2)
GRACE_S = 5.0
"""The seconds that a process has to exit before it is ended by a signal."""
HERE = Path(__file__).parent


class ProgramError(RuntimeError):
    """The error of a compiler that failed, or of a program that failed or gave a wrong result.

    A program that does not answer in time has failed too.
    """


@dataclass(frozen=True, kw_only=True)
class Greeting:
    """The first message of a rank process: its process id and its port."""

    pid: int
    port: int
    """The TCP port that the rank listens on; 0 if it does not listen."""


def compile_program(command: Sequence[str], source: Path, program: Path) -> None:
    """Compile `source` to `program`; raise ProgramError with the compiler's output if that fails.

    `command` is the compiler with its options. Libraries must follow the source, so `-lm` is added
    at the end.
    """
    whole = [*command, f"-I{HERE}", str(source), "-o", str(program), "-lm"]
    result = subprocess.run(whole, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise ProgramError(f"{command[0]} ended with {result.returncode}: {result.stderr.strip()}")


class Programs:
    """The `size` ranks of a program: a context manager, whose end ends the ranks."""

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._temporary = tempfile.TemporaryDirectory(prefix="slackline-program-")
        self.folder = Path(self._temporary.name)
        """The folder that each program gets as an argument.

        The program may also keep files of its own there.
        """
        self._errors = self.folder / "errors"
        self._asks = [self._pipe(f"ask.{rank}") for rank in range(size)]
        self._answers = [self._pipe(f"answer.{rank}") for rank in range(size)]
        self._unread = [b""] * size
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, command: Sequence[str]) -> None:
        """Start a command that runs one rank or all of them."""
        with self._errors.open("ab") as errors:
            self._processes.append(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=errors, stderr=subprocess.STDOUT
                )
            )

    def greet(self) -> list[Greeting]:
        """Wait for the first message of each rank. Call this once, before any turn."""
        words = [answer.split() for answer in self._collect("start")]
        return [Greeting(pid=int(pid), port=int(port)) for _, pid, port in words]

    def say(self, lines: Sequence[str]) -> None:
        """Send each rank its line, to which the rank sends no answer."""
        for ask, line in zip(self._asks, lines, strict=True):
            os.write(ask, f"{line}\n".encode())

    def turn(self, count: int, calls: int, warm_up: int, salt: int) -> list[Usage]:
        """Measure one turn, check the results, and return the usage of one all_reduce by rank.

        A turn has `calls` all_reduces of `count` elements. Before them come `warm_up` unmeasured
        calls, less than 100.
        """
        question = f"turn {count} {calls} {warm_up} {salt}"
        self.say([question] * len(self._asks))
        found = []
        for rank, answer in enumerate(self._collect(question)):
            words = answer.split()
            if len(words) != 6:
                raise ProgramError(f"{self._name}: rank {rank} answered {question!r}: {answer}")
            ns, user_ns, system_ns, voluntary, involuntary, idle_ns = map(int, words)
            used = Usage(
                seconds=ns / 1e9,
                user_s=user_ns / 1e9,
                system_s=system_ns / 1e9,
                voluntary=voluntary,
                involuntary=involuntary,
                idle_s=idle_ns / 1e9,
            )
            found.append(used.over(calls))
        return found

    def _pipe(self, name: str) -> int:
        path = self.folder / name
        os.mkfifo(path)
        # Open for reading and writing, so that opening does not wait for a rank.
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def _collect(self, question: str) -> list[str]:
        """Return one line from each rank.

        Raise ProgramError if a rank exits or does not answer in time.
        """
        lines: dict[int, str] = {}
        ends = {os.pidfd_open(process.pid): process for process in self._processes}
        deadline = time.monotonic() + TURN_TIMEOUT.total_seconds()
        try:
            while len(lines) < len(self._answers):
                waiting = [fd for rank, fd in enumerate(self._answers) if rank not in lines]
                left = max(0.0, deadline - time.monotonic())
                ready, _, _ = select.select([*waiting, *ends], [], [], left)
                if not ready:
                    seconds = TURN_TIMEOUT.total_seconds()
                    raise ProgramError(f"{self._name}: no answer to {question!r} in {seconds:g} s")
                for fd in ready:
                    if fd in ends:
                        code = ends[fd].wait()
                        words = self._errors.read_text(errors="replace").strip()
                        raise ProgramError(f"{self._name} ended with {code}: {words}")
                    rank = self._answers.index(fd)
                    self._unread[rank] += os.read(fd, 4096)
                    line, newline, rest = self._unread[rank].partition(b"\n")
                    if newline:
                        lines[rank], self._unread[rank] = line.decode(), rest
        finally:
            for fd in ends:
                os.close(fd)
        return [lines[rank] for rank in sorted(lines)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pipe in (*self._asks, *self._answers):
            os.close(pipe)
        for process in self._processes:
            # A rank exits by itself when its pipe is closed, unless an error left it inside a call.
            _end(process, GRACE_S if error is None else 0.0)
        self._temporary.cleanup()


def _end(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """Wait for a process; send SIGTERM after `patience_s` seconds, and SIGKILL in the end."""
    try:
        process.wait(timeout=patience_s)
    except subprocess.TimeoutExpired:
        # On SIGTERM mpirun ends its ranks as well.
        process.terminate()
        try:
            process.wait(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
