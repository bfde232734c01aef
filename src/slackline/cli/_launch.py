"""A job: one script on several ranks under torchrun, its files, and how it ended."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from slackline.cli._orphans import Orphans, children

__all__ = [
    "HERE",
    "Ending",
    "Failure",
    "Job",
    "Place",
    "Tail",
    "cause_first",
    "how",
    "usable_cores",
]

_SHUTDOWN = timedelta(seconds=5)
"""How long a rank may take to leave after SIGTERM before it is killed."""


def usable_cores() -> int:
    """Cores that this process may run on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def how(exitcode: int) -> str:
    """How a process ended, to follow its name; a signal's number is negative."""
    if exitcode >= 0:
        return f"exited with code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    return f"was killed by {name}"


class Tail:
    """Reads a file that another process is writing, each byte once; a missing file is empty."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> bytes:
        """What was added since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                added = file.read()
        except FileNotFoundError:
            return b""
        self._offset += len(added)
        return added


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A rank that did not end with exit code 0."""

    rank: int
    pid: int
    exitcode: int
    """Minus the signal's number where a signal ended the rank."""
    time_s: int
    """Unix time when torchrun saw it."""

    @property
    def reason(self) -> str:
        """How it ended, to follow the rank's name."""
        return how(self.exitcode)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a job ended."""

    failures: tuple[Failure, ...]
    """The ranks that failed, the cause first; empty too where torchrun itself failed."""
    torchrun: int
    """Exit code of torchrun's process; minus the signal's number where a signal ended it."""

    @property
    def exit_code(self) -> int:
        """0, the failed rank's own exit code, or 1 for a rank that was killed."""
        if not self.failures:
            return 0 if self.torchrun == 0 else 1
        return max(self.failures[0].exitcode, 1) if self.failures[0].exitcode > 0 else 1


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the processes of a job run, as words of command lines."""

    agent: tuple[str, ...] = ()
    """Before the command that is torchrun."""
    rendezvous: tuple[str, ...] = ("--standalone",)
    """How torchrun's ranks meet."""
    program: tuple[str, ...] = ()
    """Before the script: the module that brings a rank to its place, and its arguments."""


HERE = Place()
"""On this machine."""


class Job:
    """A started job. Everything that it writes goes to `directory`, which the caller removes.

    The ranks run in sessions of their own, so a terminal's Ctrl-C reaches the caller alone, which
    calls `stop`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        ranks: int,
        script: Path,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        place: Place = HERE,
    ) -> None:
        self.directory = directory
        self.ranks = ranks
        self._result = directory / "result.json"
        self._output = directory / "output"
        command = [*place.agent, sys.executable, "-m", "slackline.cli._agent"]
        command += [str(os.getpid()), str(self._result)]
        command += [*place.rendezvous, f"--nproc-per-node={ranks}", "--redirects=3"]
        command += [f"--log-dir={self._output}", *place.program, str(script), *arguments]
        self._orphans = Orphans(_SHUTDOWN)
        with self.torchrun_log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env={
                    **environment,
                    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(round(_SHUTDOWN.total_seconds())),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._orphans.belongs(self._process.pid)

    @property
    def torchrun_log(self) -> Path:
        """What torchrun itself said."""
        return self.directory / "torchrun.log"

    def output(self, rank: int, stream: str) -> Path | None:
        """The file that holds a rank's "stdout" or "stderr"; None before the rank has started."""
        return next(self._output.glob(f"*/attempt_0/{rank}/{stream}.log"), None)

    def processes(self) -> dict[int, int]:
        """The process id of each rank that runs now."""
        found: dict[int, int] = {}
        if self._process.returncode is not None:
            return found  # its number may be another process's
        for pid in children(self._process.pid):
            if (rank := _environment(pid).get("RANK")) is not None:
                found[int(rank)] = pid
        return found

    def wait(self, timeout: timedelta) -> bool:
        """Whether the job has ended, after at most `timeout`.

        What torchrun has left behind is ended too: its ranks, when it was killed itself.
        """
        deadline_s = time.monotonic() + timeout.total_seconds()
        self._orphans.reap()
        try:
            self._process.wait(timeout.total_seconds())
        except subprocess.TimeoutExpired:
            return False
        return self._orphans.gone(timedelta(seconds=max(deadline_s - time.monotonic(), 0)))

    def stop(self) -> None:
        """Ask torchrun to end the ranks, by SIGTERM and after five seconds by SIGKILL.

        Returns at once; `wait` follows.
        """
        if self._process.poll() is None:
            self._process.terminate()

    def ending(self) -> Ending:
        """How the job ended; only after `wait` has returned True."""
        try:
            found = json.loads(self._result.read_text())
        except (FileNotFoundError, ValueError):
            found = []
        failures = [Failure(**entry) for entry in found]
        spoken_ns = {failure.rank: self._spoken_ns(failure.rank) for failure in failures}
        return Ending(failures=cause_first(failures, spoken_ns), torchrun=self._process.returncode)

    def last_words(self, rank: int, limit: int) -> list[str]:
        """The last lines of a rank's stderr, or of its stdout where stderr is empty."""
        for stream in ("stderr", "stdout"):
            path = self.output(rank, stream)
            lines = path.read_text(errors="replace").splitlines() if path else []
            if lines:
                return lines[-limit:]
        return []

    def _spoken_ns(self, rank: int) -> int:
        path = self.output(rank, "stderr")
        return path.stat().st_mtime_ns if path else 0


def _environment(pid: int) -> dict[str, str]:
    """What a process was started with; empty when it has ended."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def cause_first(failures: Sequence[Failure], spoken_ns: Mapping[int, int]) -> tuple[Failure, ...]:
    """Orders failures: kills from outside, then by the time of last words, then torchrun's kills.

    torchrun ends the other ranks by SIGTERM, and by SIGKILL those that have not left long after.
    """
    first_s = min((failure.time_s for failure in failures), default=0)

    def place(failure: Failure) -> tuple[int, int]:
        if failure.exitcode >= 0:
            return 1, spoken_ns[failure.rank]
        late = failure.time_s - first_s >= _SHUTDOWN.total_seconds() / 2
        return (2 if late or failure.exitcode == -signal.SIGTERM else 0), 0

    return tuple(sorted(failures, key=place))
