"""Commands that run side by side and never outlive an interrupt of this process.

All commands are started and read by the calling thread. A pool of threads would not do: an
interrupt can leave one of its locks held, and the process would then wait for its threads forever.
"""

import os
import selectors
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from slackline.errors import UsageError

__all__ = ["run_all"]

_SIGNAL_DELAY = timedelta(milliseconds=200)
"""The longest time from a signal, such as Ctrl-C during a compilation, to its handler."""

_QUOTED = 2000
"""The largest number of characters that an error quotes from a command's output."""


def run_all(commands: list[list[str]], at_once: int) -> list[str]:
    """Run the commands, at most `at_once` at a time; return the standard output of each.

    Raises UsageError if a command fails. Then, and when this process is interrupted, all commands
    that still run are killed.
    """
    done: dict[int, str] = {}
    running: list[_Command] = []
    waiting = list(enumerate(commands))
    with selectors.DefaultSelector() as selector:
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    number, words = waiting.pop(0)
                    with _interrupts_later():
                        running.append(_Command(number, words, selector))
                # A signal that arrives just before this thread blocks does not wake it, and Python
                # calls the handler only when the thread runs again: each wait is therefore short.
                for key, _ in selector.select(_SIGNAL_DELAY.total_seconds()):
                    command: _Command = key.data
                    if command.read(key.fd, selector):
                        done[command.number] = command.output()
                        running.remove(command)
        finally:
            for command in running:
                command.kill()
    return [done[number] for number in range(len(commands))]


class _Command:
    """A running command, whose output is read through a selector."""

    def __init__(self, number: int, words: list[str], selector: selectors.BaseSelector) -> None:
        self.number = number
        self._name = words[0]
        pipe = subprocess.PIPE
        # Each command has a process group of its own, because compilers start other processes.
        self._process = subprocess.Popen(words, stdout=pipe, stderr=pipe, process_group=0)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._out = self._process.stdout.fileno()
        self._read = {self._out: bytearray(), self._process.stderr.fileno(): bytearray()}
        self._open = set(self._read)
        for stream in self._open:
            selector.register(stream, selectors.EVENT_READ, self)

    def read(self, stream: int, selector: selectors.BaseSelector) -> bool:
        """Read what has come on the file descriptor; return whether both outputs have ended."""
        if piece := os.read(stream, 1 << 16):
            self._read[stream] += piece
            return False
        selector.unregister(stream)
        self._open.remove(stream)
        return not self._open

    def output(self) -> str:
        """Wait for the process to end and return its standard output.

        Raises UsageError if the process failed; the error quotes its output.
        """
        code = self._process.wait()
        out, errors = (bytes(each).decode(errors="replace") for each in self._read.values())
        self._close()
        if code:
            said = (errors or out).strip()[-_QUOTED:]
            raise UsageError(f"{self._name} ended with code {code}:\n{said}")
        return out

    def kill(self) -> None:
        """Kill the process and all processes of its group."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._close()

    def _close(self) -> None:
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Delay SIGINT to the end of the block, so that no process is started and then forgotten.

    Python runs handlers in the main thread alone; other threads need no delay.
    """
    former = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or former is None:
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
        if came:
            signal.raise_signal(signal.SIGINT)
