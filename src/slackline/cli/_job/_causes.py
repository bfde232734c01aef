"""The failed ranks of a job, and the rank among them that likely caused the job's failure."""

import re
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Failure", "cause_first", "how", "script_error"]

_MARK = re.compile(r"\[rank\d+\]: ")
"""The text that torch writes before each line of an exception that ends a script."""

_TRACEBACK = "Traceback (most recent call last):"

_LINKS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
"""The lines between two tracebacks of a chain of exceptions."""

_ABOUT_OTHERS = re.compile(
    r"(slackline\.errors\.|RuntimeError: .*\b)(PeerError|LinkError|FrameError|TimeoutError): "
)
"""Errors that another rank or the network has caused; C++ passes them on as RuntimeErrors."""


def how(exitcode: int) -> str:
    """Return a phrase for the end of a process, such as "exited with code 3".

    `exitcode` is minus the signal's number if a signal killed the process.
    """
    if exitcode >= 0:
        return f"exited with code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    return f"was killed by {name}"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A rank that did not end with exit code 0."""

    rank: int
    pid: int
    exitcode: int
    """The rank's exit code; minus the signal's number if a signal ended the rank."""
    time_s: int
    """The Unix time at which torchrun saw the rank end, in seconds."""
    error: str = ""
    """The exception that ended the rank's script, such as "ValueError: wrong weights".

    Empty if the rank's output names none.
    """

    @property
    def reason(self) -> str:
        """A phrase for the end of the rank, such as "was killed by SIGKILL"."""
        after = f" after {self.error}" if self.error and self.exitcode < 0 else ""
        return how(self.exitcode) + after

    @property
    def own_error(self) -> bool:
        """Whether an exception ended the script that no other rank has caused."""
        return bool(self.error) and _ABOUT_OTHERS.match(self.error) is None


def script_error(stderr: str, *, marked: bool) -> str:
    """Return the exception that ended a Python script, such as "ValueError: wrong weights".

    The exception is that of the last traceback in `stderr`. If this exception was raised while
    another one was handled, the earlier one counts. torch marks the lines of an exception that
    ends a script, so that an exception that the script has caught and printed can be told apart:
    with `marked`, other lines are ignored. The result is empty if there is no such exception.
    """
    lines = [line for line in stderr.splitlines() if line]
    with_mark = [_MARK.sub("", line, count=1) for line in lines if _MARK.match(line)]
    error, before = "", ""
    inside = chained = False
    for line in with_mark if with_mark or marked else lines:
        if line == _TRACEBACK:
            # The interpreter prints exceptions of destructors and exit handlers, and goes on.
            inside = not before.startswith("Exception ignored")
            chained = before in _LINKS
        elif inside and not line.startswith(" "):
            inside = False
            if not chained:
                error = line
        before = line
    return error


def cause_first(
    failures: Sequence[Failure], spoken_ns: Mapping[int, int], cut_off: Collection[int]
) -> tuple[Failure, ...]:
    """Sort failed ranks, with the likely cause of the job's failure first.

    Ranks that were killed from outside come first. Then come ranks that ended by themselves, or
    were ending after an error of their own, by the time of their last output; then ranks that ended
    because of another rank; and ranks that torchrun ended come last. After the first failure
    torchrun ends the other ranks by SIGTERM, and those in `cut_off` by SIGKILL, since they had not
    ended in time. Therefore a rank that ended by SIGTERM, or was cut off, is not the cause unless
    it had an error of its own before. `spoken_ns` is the time of each rank's last output on stderr.
    """

    def place(failure: Failure) -> tuple[int, int]:
        by_torchrun = failure.exitcode == -signal.SIGTERM or failure.rank in cut_off
        if failure.exitcode < 0 and not by_torchrun:
            return 0, 0
        if by_torchrun and not failure.own_error:
            return 3, 0
        return (1 if failure.own_error or not failure.error else 2), spoken_ns[failure.rank]

    return tuple(sorted(failures, key=place))
