"""The display of a running job: a live line on a terminal, or plain output that a file can keep.

Rank 0's stdout and stderr are copied unchanged to the command's stdout and stderr. Messages of the
command itself go to stderr.
"""

import os
import sys
import time
from contextlib import suppress
from datetime import timedelta
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

__all__ = ["PlainScreen", "Screen", "TerminalScreen", "open_screen"]


class Screen(Protocol):
    """A display for a rank's output, the command's notes, its progress, and tables."""

    @property
    def lost(self) -> str:
        """Why output could not be shown, such as "stdout: No space left on device"; else empty."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

    def stdout(self, output: bytes) -> None:
        """Show bytes of rank 0's stdout; calls arrive in order."""

    def stderr(self, output: bytes) -> None:
        """Show bytes of rank 0's stderr; calls arrive in order."""

    def note(self, text: str) -> None:
        """Show one line from the command itself."""

    def progress(self, text: str) -> None:
        """Show the job's progress; the text replaces the previous one."""

    def table(self, table: Table) -> None:
        """Show a table at the end of the job."""


class PlainScreen:
    """A display without cursor movement: output passes through, progress is a line now and then."""

    def __init__(
        self, interval: timedelta = timedelta(seconds=15), *, command: str = "slackline run"
    ) -> None:
        self._command = command
        self._console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)
        self._interval_s = interval.total_seconds()
        self._said_s = time.monotonic()
        self._within_line = False
        self._lost = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._write("stdout", "")
        self._write("stderr", "")

    @property
    def lost(self) -> str:
        return self._lost

    def stdout(self, output: bytes) -> None:
        self._write("stdout", output.decode(errors="replace"))

    def stderr(self, output: bytes) -> None:
        self._write("stderr", output.decode(errors="replace"))
        self._within_line = not output.endswith(b"\n")

    def note(self, text: str) -> None:
        self._begin_line()
        self._write("stderr", f"{self._command}: {text}\n")

    def progress(self, text: str) -> None:
        now_s = time.monotonic()
        if now_s - self._said_s >= self._interval_s:
            self._said_s = now_s
            self.note(text)

    def table(self, table: Table) -> None:
        self._begin_line()
        with self._console.capture() as shown:
            self._console.print(table)
        self._write("stderr", shown.get())

    def _write(self, name: str, text: str) -> None:
        """Write to a stream; the job goes on if the stream has no reader or no space any more."""
        stream = getattr(sys, name)
        try:
            stream.write(text)
            stream.flush()
        except OSError as error:
            discard(stream)
            if not self._lost:
                self._lost = f"{name}: {error.strerror or error}"
                self.note(f"nothing more is shown on {self._lost}; the job goes on")

    def _begin_line(self) -> None:
        if self._within_line:
            self.stderr(b"\n")


class TerminalScreen:
    """A display with a live line at the bottom of the terminal; output scrolls above it."""

    def __init__(self, *, command: str = "slackline run") -> None:
        self._command = command
        self._console = Console(stderr=True)
        self._status = Status("starting", console=self._console, refresh_per_second=5)
        # Output to the terminal must go through the console that draws the live line. A redirected
        # stdout need not.
        self._stdout_is_terminal = sys.stdout.isatty()
        self._unfinished = {"stdout": b"", "stderr": b""}
        self._lost = ""

    def __enter__(self) -> Self:
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        for rest in self._unfinished.values():
            if rest:
                self._print(rest)
        self._status.stop()
        self._pass_on(b"")

    @property
    def lost(self) -> str:
        return self._lost

    def stdout(self, output: bytes) -> None:
        if self._stdout_is_terminal:
            self._lines("stdout", output)
        else:
            self._pass_on(output)

    def stderr(self, output: bytes) -> None:
        self._lines("stderr", output)

    def note(self, text: str) -> None:
        self._console.print(Text(f"{self._command}: ", style="bold") + Text(text))

    def progress(self, text: str) -> None:
        self._status.update(Text(text))

    def table(self, table: Table) -> None:
        self._console.print(table)

    def _pass_on(self, output: bytes) -> None:
        """Write to stdout; the job goes on if it has no reader or no space any more."""
        try:
            sys.stdout.buffer.write(output)
            sys.stdout.buffer.flush()
        except OSError as error:
            discard(sys.stdout)
            if not self._lost:
                self._lost = f"stdout: {error.strerror or error}"
                self.note(f"nothing more is shown on {self._lost}; the job goes on")

    def _lines(self, stream: str, output: bytes) -> None:
        *lines, self._unfinished[stream] = (self._unfinished[stream] + output).split(b"\n")
        for line in lines:
            self._print(line)

    def _print(self, line: bytes) -> None:
        # A carriage return moves the cursor back: only the text after the last one stays visible.
        text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
        self._console.print(Text.from_ansi(text), soft_wrap=True)


def open_screen(command: str = "slackline run") -> Screen:
    """Return a TerminalScreen if stderr is a terminal, else a PlainScreen.

    `command` is the command's name, which precedes each of its notes.
    """
    return TerminalScreen(command=command) if sys.stderr.isatty() else PlainScreen(command=command)


def discard(stream: TextIO) -> None:
    """Let a stream discard all that is written to it, and what could not be written so far."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        with suppress(OSError, ValueError):  # a stream of a test has no descriptor
            os.dup2(nowhere, stream.fileno())
            stream.flush()
    finally:
        os.close(nowhere)
