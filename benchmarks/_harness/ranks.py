"""Rank processes that answer a benchmark's questions.

Ranks are processes of this host, or of the hosts of a lab (a virtual network on this machine). The
benchmark's own process, the conductor, sends all ranks one question (a method call), waits for all
answers, and sends the next. Between two questions a rank sleeps on a pipe, so that it takes no
processor time from other contestants that are being measured. If a rank fails, the benchmark ends
with the error of the rank that failed first.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from slackline.lab import Lab

ANSWER_TIMEOUT = timedelta(minutes=2)
GRACE = timedelta(seconds=1)
"""The time for other ranks to answer after the first failure, since their errors are of use too."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The identity of a rank process within its group."""

    rank: int
    size: int
    store: Path
    """A file for torch's FileStore, the same for all ranks, and new for each `Ranks`."""


class RankFailedError(RuntimeError):
    """The error of a rank that raised an exception, died, or did not answer in time.

    All ranks of its group are stopped.
    """


class Member(Protocol):
    """The process of a rank, as the benchmark's main process controls it."""

    @property
    def pid(self) -> int:
        """The process id."""
        ...

    def end(self, patience: timedelta) -> int | None:
        """Wait for the process and return its exit code; kill it after `patience`."""
        ...


class Conductor:
    """The benchmark's main process as a caller of methods at all ranks.

    Leaving its context stops every rank process.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="slackline-benchmark-")
        self._connections: list[Connection] = []
        self._members: list[Member] = []

    def place(self, rank: int, size: int) -> Place:
        """Return the identity that rank `rank` of `size` ranks is given."""
        return Place(rank=rank, size=size, store=Path(self._folder.name, "store"))

    @property
    def pids(self) -> list[int]:
        """The process ids of the ranks, in rank order."""
        return [member.pid for member in self._members]

    def ask(self, method: str, *arguments: object) -> list[Any]:
        """Call `method(*arguments)` at each rank and return the answers, in rank order.

        Raises RankFailedError with the tracebacks of the failed ranks, the first failure first. The
        call does not wait for the other ranks, which may be waiting for the failed rank.
        """
        answers: dict[int, Any] = {}
        failures: list[str] = []
        waiting = set(range(len(self._connections)))
        for connection in self._connections:
            # The pipe of a dead rank is broken; the read below finds out how the rank died.
            with suppress(OSError):
                connection.send((method, arguments))
        deadline = time.monotonic() + ANSWER_TIMEOUT.total_seconds()
        while waiting:
            ready = wait(
                [self._connections[rank] for rank in waiting],
                timeout=max(0.0, deadline - time.monotonic()),
            )
            if not ready:
                break
            for rank in sorted(waiting):
                if self._connections[rank] in ready:
                    waiting.remove(rank)
                    failed, answers[rank] = self._receive(rank)
                    if failed:
                        failures.append(f"rank {rank} {answers[rank]}")
                        deadline = min(deadline, time.monotonic() + GRACE.total_seconds())
        if waiting and not failures:
            late = ", ".join(map(str, sorted(waiting)))
            seconds = ANSWER_TIMEOUT.total_seconds()
            failures.append(f"ranks {late}: no answer to {method} within {seconds:g} s")
        if failures:
            raise RankFailedError("\n".join(failures))
        return [answers[rank] for rank in sorted(answers)]

    def _receive(self, rank: int) -> tuple[bool, Any]:
        """Return whether the rank failed, and its answer or a description of the failure."""
        try:
            failed, answer = self._connections[rank].recv()
        except (EOFError, OSError):
            return True, f"died with exit code {self._members[rank].end(timedelta(seconds=5))}"
        return failed, answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for connection in self._connections:
            connection.close()
        # A rank exits by itself when its pipe is closed, unless an error left it inside a call.
        patience = timedelta(seconds=5 if error is None else 0)
        for member in self._members:
            member.end(patience)
        self._folder.cleanup()


class Ranks(Conductor):
    """A group of `size` processes of this host, each with an object `performer(place)`.

    Use as a context manager. `performer` is a class or function of an importable module.
    `environment` is set in each process before `performer` is called.
    """

    def __init__(
        self,
        performer: Callable[[Place], Any],
        size: int,
        *,
        environment: Mapping[str, str],
    ) -> None:
        super().__init__()
        context = multiprocessing.get_context("forkserver")
        # The fork server imports torch once for all ranks; it never creates a process group itself.
        context.set_forkserver_preload(["torch.distributed"])
        for rank in range(size):
            ours, theirs = context.Pipe()
            place = self.place(rank, size)
            process = context.Process(
                target=serve, args=(performer, place, dict(environment), theirs), daemon=True
            )
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._members.append(_Forked(process))


class LabRanks(Conductor):
    """A group of processes on the hosts of a lab, each with an object `performer(place)`.

    Use as a context manager, within the context of the lab. `performer` and `environment` are as
    for `Ranks`, and the processes start with that environment. `hosts` has the host of each rank,
    or their number where each rank has a host of its own; by default every host has a rank.
    """

    def __init__(
        self,
        performer: Callable[[Place], Any],
        lab: Lab,
        *,
        environment: Mapping[str, str],
        hosts: int | Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        if hosts is None:
            hosts = lab.options.hosts
        places = range(hosts) if isinstance(hosts, int) else hosts
        size = len(places)
        for rank, host in enumerate(places):
            ours, theirs = multiprocessing.Pipe()
            with theirs:
                program = [sys.executable, str(Path(__file__).with_name("lab_rank.py"))]
                process = subprocess.Popen(
                    lab.command(host, [*program, str(theirs.fileno())]),
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, **environment},
                )
            # The import path must come first: without it the rank cannot import the performer's
            # module.
            ours.send(sys.path)
            ours.send((performer, self.place(rank, size)))
            self._connections.append(ours)
            self._members.append(_Started(process))


@dataclass(frozen=True)
class _Forked:
    """A rank process of multiprocessing, on this host."""

    process: BaseProcess

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def end(self, patience: timedelta) -> int | None:
        self.process.join(timeout=patience.total_seconds())
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        return self.process.exitcode


@dataclass(frozen=True)
class _Started:
    """A rank process on a host of a lab."""

    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def end(self, patience: timedelta) -> int | None:
        try:
            return self.process.wait(timeout=patience.total_seconds())
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def serve(
    performer: Callable[[Place], Any],
    place: Place,
    environment: Mapping[str, str],
    connection: Connection,
) -> None:
    """Call methods of `performer(place)` as the benchmark's main process asks.

    The main process ends the calls when it closes the pipe.
    """
    os.environ.update(environment)
    subject: Any = None
    # The end of the main process ends its ranks, even if they have an answer to send.
    with suppress(EOFError, ConnectionError):
        while True:
            method, arguments = connection.recv()
            try:
                if subject is None:
                    subject = performer(place)
                answer = (False, getattr(subject, method)(*arguments))
            except Exception:
                answer = (True, f"failed:\n{traceback.format_exc()}")
            connection.send(answer)
