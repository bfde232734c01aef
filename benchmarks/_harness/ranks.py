"""Rank processes that do what the benchmark asks, and end with the first one's error.

Ranks are processes of this host, or of the hosts of a lab. The benchmark's own process conducts:
it asks all ranks for one thing, waits for all answers, asks for the next. Between two questions a
rank sleeps in a pipe and takes no processor time from whatever else is measured, another program
included.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
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
"""How long the other ranks may still answer after the first failed: their errors tell more."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Who a rank process is."""

    rank: int
    size: int
    store: Path
    """A file for torch's FileStore, the same for all ranks, new for each `Ranks`."""


class RankFailedError(RuntimeError):
    """A rank raised, died or did not answer in time. All ranks of its group are stopped."""


class Member(Protocol):
    """A rank's process as its conductor knows it."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    def end(self, patience: timedelta) -> int | None:
        """Its exit code; a process that has not left after `patience` is killed."""
        ...


class Conductor:
    """Asks ranks; leaving its context stops every process."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="slackline-benchmark-")
        self._connections: list[Connection] = []
        self._members: list[Member] = []

    def place(self, rank: int, size: int) -> Place:
        """What rank `rank` is told about itself."""
        return Place(rank=rank, size=size, store=Path(self._folder.name, "store"))

    @property
    def pids(self) -> list[int]:
        """The process ids of the ranks, in rank order."""
        return [member.pid for member in self._members]

    def ask(self, method: str, *arguments: object) -> list[Any]:
        """What `method(*arguments)` returned at each rank, in rank order.

        Raises RankFailedError with the tracebacks of the ranks that failed, the first one's first;
        it does not wait for the others, which may be waiting for the one that failed.
        """
        answers: dict[int, Any] = {}
        failures: list[str] = []
        waiting = set(range(len(self._connections)))
        for connection in self._connections:
            # A dead rank's pipe is broken; reading from it below tells how it died.
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
        """Whether the rank failed, and its answer or what happened to it."""
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
        # A rank whose pipe is closed leaves by itself, unless an error left it inside a call.
        patience = timedelta(seconds=5 if error is None else 0)
        for member in self._members:
            member.end(patience)
        self._folder.cleanup()


class Ranks(Conductor):
    """`size` processes of this host, each holding one `performer(place)`.

    Use as a context manager. `performer` is a class or function of an importable module;
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
        # One import of torch for all ranks; the server itself never opens a group.
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
    """One process on each host of a lab, each holding one `performer(place)`.

    Use as a context manager, within the lab's. `performer` and `environment` as for `Ranks`; the
    processes start with that environment. `hosts`: only on the first so many.
    """

    def __init__(
        self,
        performer: Callable[[Place], Any],
        lab: Lab,
        *,
        environment: Mapping[str, str],
        hosts: int | None = None,
    ) -> None:
        super().__init__()
        size = lab.options.hosts if hosts is None else hosts
        for rank in range(size):
            ours, theirs = multiprocessing.Pipe()
            with theirs:
                program = [sys.executable, str(Path(__file__).with_name("lab_rank.py"))]
                process = subprocess.Popen(
                    lab.command(rank, [*program, str(theirs.fileno())]),
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, **environment},
                )
            # The path first: it is what makes the performer's module known.
            ours.send(sys.path)
            ours.send((performer, self.place(rank, size)))
            self._connections.append(ours)
            self._members.append(_Started(process))


@dataclass(frozen=True)
class _Forked:
    """A process of multiprocessing."""

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
    """A program on a host of a lab."""

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
    """Answer the conductor's questions until it closes the pipe."""
    os.environ.update(environment)
    subject: Any = None
    # An ended conductor ends its ranks, whatever they were about to say.
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
