"""A job: one program on several ranks under torchrun, with its files and its exit codes."""

import json
import os
import subprocess
import sys
import time
import uuid
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from slackline.cli._job._causes import Failure, cause_first, script_error
from slackline.cli._job._limits import usable_cores
from slackline.cli._job._loopback import loopback_address, require_ports
from slackline.cli._job._orphans import Orphans, children, environment_of
from slackline.cli._job._output import Output, writing_to
from slackline.cli._job._program import Program
from slackline.errors import HELP_NOTE

__all__ = [
    "ONE_AGENT",
    "SHUTDOWN",
    "Ending",
    "Job",
    "Place",
    "meeting_at",
    "on_this_machine",
    "ranks_named",
    "thread_settings",
]

ONE_AGENT = "slackline-one-agent"
"""The name of the rendezvous in _one_agent.py, for torchrun's option --rdzv-backend."""

SHUTDOWN = timedelta(seconds=30)
"""The default of the time that a rank has to end after SIGTERM before it is killed: torchrun's."""

_MOST_STDERR = 1 << 20
"""The bytes at the end of a rank's stderr in which its error is looked for."""


def thread_settings(environment: Mapping[str, str], ranks: int) -> dict[str, str]:
    """Return OMP_NUM_THREADS for `ranks` ranks that share this machine's cores.

    The result is empty if `environment` has the variable already.
    """
    if "OMP_NUM_THREADS" in environment:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, usable_cores() // ranks))}


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The outcome of a job: its failed ranks and torchrun's exit code."""

    failures: tuple[Failure, ...]
    """The ranks that failed, the likely cause first; also empty if torchrun itself failed."""
    torchrun: int
    """The exit code of torchrun's process; minus the signal's number if a signal ended it."""
    cut_off: tuple[int, ...] = ()
    """The ranks that were killed because they had not ended in time after SIGTERM."""

    @property
    def exit_code(self) -> int:
        """The command's exit code: 0, the failed rank's own, or 1 if a signal killed the rank."""
        if not self.failures:
            return 0 if self.torchrun == 0 else 1
        return max(self.failures[0].exitcode, 1) if self.failures[0].exitcode > 0 else 1


@dataclass(frozen=True, kw_only=True)
class Place:
    """The host that a job's processes run on, as parts of command lines."""

    rendezvous: tuple[str, ...]
    """The torchrun options by which the job's ranks find each other."""
    agent: tuple[str, ...] = ()
    """The words before the command that runs torchrun."""
    program: tuple[str, ...] = ()
    """The words before the program: a module that moves a rank to its host, and its arguments."""
    first: int = 0
    """The number of the first rank that runs here; the ranks before it run on other machines."""
    world: int | None = None
    """The number of ranks on all machines; None if all of them run here."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Variables for the ranks, each unless the job's environment has a value for it."""


def on_this_machine(ranks: int) -> Place:
    """Return the place of a job whose ranks all run on this machine, outside any lab.

    Neither the job's store nor its ranks listen at an address that other machines can reach. Raises
    UsageError if the machine's loopback interface does not work, or has too few free ports.
    """
    address = loopback_address()
    require_ports(address, ranks)
    return Place(rendezvous=meeting_at(address), settings={"SLACKLINE_LISTEN": "loopback"})


def meeting_at(address: str) -> tuple[str, ...]:
    """Return the torchrun options for ranks that one torchrun starts, and that meet at `address`.

    The job's store listens at this address only, which is one of the host that runs torchrun.
    """
    host = f"[{address}]" if ":" in address else address
    return (
        "--nnodes=1",
        f"--rdzv-backend={ONE_AGENT}",
        f"--rdzv-endpoint={host}:0",  # without it torchrun warns of an option that is not given
        f"--rdzv-id={uuid.uuid4()}",
        f"--local-addr={address}",
    )


class Job:
    """A started job, which writes all its files to `directory`; the caller removes the directory.

    The ranks run in sessions of their own. A terminal's Ctrl-C therefore reaches the caller alone,
    and the caller must call `stop`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        ranks: int,
        program: Program,
        environment: Mapping[str, str],
        place: Place,
        shutdown: timedelta = SHUTDOWN,
        options: Sequence[str] = (),
    ) -> None:
        """Start the job; `shutdown` is the time between SIGTERM and SIGKILL for its ranks.

        `options` are further options of torchrun.
        """
        self.directory = directory
        self.ranks = range(place.first, place.first + ranks)
        """The numbers of the ranks that this machine runs."""
        self._disk_error = ""
        self._shutdown_s = shutdown.total_seconds()
        self._result = os.memfd_create("slackline-result", os.MFD_CLOEXEC)
        """The file that torchrun's process fills; it is in memory, as a disk may be full."""
        weakref.finalize(self, os.close, self._result)
        with writing_to(directory):
            self._output = Output(directory / "output", self.ranks)
            log = self.torchrun_log.open("wb")
        command = [*place.agent, sys.executable, "-m", "slackline.cli._job._agent"]
        command += [str(os.getpid()), str(self._result), str(self._shutdown_s)]
        command += [self._output.targets]
        command += [*place.rendezvous, f"--nproc-per-node={ranks}", "--redirects=3"]
        command += [
            f"--log-dir={directory / 'torchelastic'}",
            *options,
            *place.program,
            *program.words,
        ]
        self._orphans = Orphans(shutdown)
        with log:
            self._process = subprocess.Popen(
                command,
                env={
                    **environment,
                    **{k: v for k, v in place.settings.items() if not environment.get(k)},
                },
                pass_fds=(self._result, *self._output.descriptors),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._output.start()
        self._orphans.belongs(self._process.pid)

    @property
    def torchrun_log(self) -> Path:
        """The file with the output of torchrun itself."""
        return self.directory / "torchrun.log"

    def output(self, rank: int, stream: str) -> bytes:
        """Return the output of a rank's "stdout" or "stderr" since the last call.

        The result is empty for a rank of another machine.
        """
        return self._output.take(rank, stream)

    @property
    def disk_error(self) -> str:
        """Why a file of the directory could not be written; empty if all could."""
        if not self.directory.is_dir():
            return "the directory was removed"
        return self._disk_error or self._output.error

    def processes(self) -> dict[int, int]:
        """Return the process id of each rank that is running now, by rank."""
        found: dict[int, int] = {}
        if self._process.returncode is not None:
            return found  # The kernel may have reused the process id.
        for pid in children(self._process.pid):
            if (rank := environment_of(pid).get("RANK")) is not None:
                found[int(rank)] = pid
        return found

    def wait(self, timeout: timedelta) -> bool:
        """Wait until the job has ended, at most `timeout`, and return whether it has ended.

        Processes that torchrun left behind are ended as well, for example its ranks if torchrun
        itself was killed.
        """
        deadline_s = time.monotonic() + timeout.total_seconds()
        self._orphans.reap()
        try:
            self._process.wait(timeout.total_seconds())
        except subprocess.TimeoutExpired:
            return False
        ended = self._orphans.gone(timedelta(seconds=max(deadline_s - time.monotonic(), 0)))
        if ended:
            self._output.finish()
        return ended

    def stop(self) -> None:
        """Ask torchrun to end the ranks: it sends SIGTERM, and SIGKILL after the shutdown time.

        The call returns at once; call `wait` afterwards.
        """
        if self._process.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        """End torchrun and all ranks by SIGKILL; call `wait` afterwards, which reaps them."""
        self._orphans.end_at_once()
        if self._process.poll() is None:
            self._process.kill()

    def ending(self) -> Ending:
        """Return the outcome of the job, and write its failed ranks to "result.json".

        Call this only after `wait` has returned True.
        """
        said = os.pread(self._result, os.fstat(self._result).st_size, 0)
        found = json.loads(said) if said else {"failures": [], "cut_off": []}
        if said:
            self._write("result.json", json.dumps(found["failures"]))
        failures = [self._with_error(Failure(**entry)) for entry in found["failures"]]
        spoken_ns = {
            failure.rank: self._output.spoken_ns(failure.rank, "stderr") for failure in failures
        }
        cut_off = {self.ranks.start + local for local in found["cut_off"]} | self._orphans.cut_off
        return Ending(
            failures=cause_first(failures, spoken_ns, cut_off),
            torchrun=self._process.returncode,
            cut_off=tuple(sorted(cut_off)),
        )

    def last_words(self, rank: int, limit: int) -> list[str]:
        """Return the last `limit` lines of a rank's stderr, or of its stdout if stderr is empty."""
        for stream in ("stderr", "stdout"):
            lines = self._output.end_of(rank, stream).decode(errors="replace").splitlines()
            if lines:
                return lines[-limit:]
        return []

    def last_line(self, rank: int) -> str:
        """Return the last line of `last_words`, but for the note that names `slackline help`."""
        lines = [each for each in self.last_words(rank, 2) if not each.startswith(HELP_NOTE)]
        return lines[-1] if lines else ""

    def _write(self, name: str, text: str) -> None:
        """Write a file of the job's directory; an error of the disk becomes `disk_error`."""
        try:
            (self.directory / name).write_text(text)
        except OSError as error:
            self._disk_error = error.strerror or str(error)

    def _with_error(self, failure: Failure) -> Failure:
        """Return the failure with the error that the rank's stderr ends with."""
        text = self._output.end_of(failure.rank, "stderr", _MOST_STDERR).decode(errors="replace")
        return replace(failure, error=script_error(text, marked=failure.exitcode < 0))


def ranks_named(ranks: Sequence[int]) -> str:
    """Return ranks in words, such as "rank 1" or "ranks 1, 3"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(str(rank) for rank in sorted(ranks))}"
