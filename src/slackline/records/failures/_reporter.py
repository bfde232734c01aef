"""The thread that finds hangs and failed operations of a process and writes the rank's report."""

import logging
import os
import platform
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from slackline._distribution import version
from slackline.records import clock_name, host_name
from slackline.records.failures._files import request_file_of, write_report
from slackline.records.failures._schema import (
    REPORT_VERSION,
    Error,
    Event,
    OperationState,
    RailState,
    Report,
)
from slackline.records.failures._stacks import cut, threads

__all__ = ["DEFAULT_HANG", "Reporter", "Source"]

_log = logging.getLogger("slackline.records.failures")

DEFAULT_HANG = timedelta(seconds=30)
"""The time after which a waiting operation counts as hanging."""

_TIMES_THE_USUAL = 20
"""The multiple of its usual duration that a hanging operation has taken too."""

_LOOK_S = 1.0
"""The time between two looks at the operations that wait."""

_PATIENCE_S = 5.0
"""The time for which a failing thread waits until the report is written."""

_SAMPLED_AFTER_NS = 1_000_000_000
"""The age of a waiting operation from which on the rails' frames are watched."""

_QUIET_NS = 10_000_000_000
"""The time for which a rank that has reported answers no request of another rank."""

_FIRST_EVENTS = 4
_LATEST_EVENTS = 4
_MOST_OPERATIONS = 32
_MOST_RAILS = 128
_MOST_MEMBERS = 128
_MOST_WARNINGS = 8

_VMSTAT = Path("/proc/vmstat")

OperationKey = tuple[int, str, int, int, int, int]


class Source(Protocol):
    """The state of one engine. Any thread may call the methods; they never block for long."""

    def failures(self) -> tuple[list[OperationState], int]:
        """Return the operations that have failed since the previous call, and the number of
        further ones.
        """

    def waiting(self) -> list[OperationState]:
        """Return the operations that wait, the oldest first."""

    def rails(self) -> list[tuple[RailState, int, int]]:
        """Return the state of each rail with its numbers of sent and received frames.

        The times of the frames in the state are 0.
        """


@dataclass(slots=True)
class _Request:
    """A request for an event by a thread that waits until the event is written."""

    kind: str
    errors: tuple[Error, ...] = ()
    written: threading.Event = field(default_factory=threading.Event)


class Reporter:
    """The writer of one rank's report. In a forked child its methods do nothing."""

    def __init__(
        self,
        directory: Path,
        rank: int,
        *,
        hang: timedelta = DEFAULT_HANG,
        now_ns: Callable[[], int] = time.monotonic_ns,
        starts: bool = True,
    ) -> None:
        """Create the writer of the report of `rank` in `directory`.

        An operation hangs if it waits for longer than `hang` and 20 times the usual; zero reports
        no hangs. `now_ns` reads CLOCK_MONOTONIC. Without `starts`, `follow` starts no thread, and
        the caller calls `look`.
        """
        self.directory = directory
        self.rank = rank
        self._hang_ns = hang // timedelta(microseconds=1) * 1000
        self._now_ns = now_ns
        self._starts = starts
        self._process = os.getpid()
        self._looking = threading.Lock()
        self._starting = threading.Lock()
        self._source: Source | None = None
        self._events: list[Event] = []
        self._left_out = 0
        self._told: set[OperationKey] = set()
        self._told_ns: int | None = None
        self._moved: dict[tuple[int, int], tuple[int, int, int, int]] = {}
        self._asked_ns = self._request_time_ns()
        self._killed = _killed_for_memory()
        self._requests: deque[_Request] = deque()
        self._wake = threading.Event()
        self._warned: set[str] = set()
        self._thread: threading.Thread | None = None

    def follow(self, source: Source) -> None:
        """Look at `source` once a second from now on, until `forget`."""
        if os.getpid() != self._process:
            return
        self._source = source
        if self._starts:
            with self._starting:
                # The thread runs only while it is the one in this field.
                self._thread = threading.Thread(
                    target=self._run, name="slackline-report", daemon=True
                )
                try:
                    self._thread.start()
                except BaseException:
                    self._thread = None
                    raise

    def forget(self) -> None:
        """Report the failures that the source still has, and stop looking at it."""
        if os.getpid() != self._process:
            return
        with self._starting:
            thread, self._thread = self._thread, None
        if thread is None:
            self._look_safely()
        else:
            self._wake.set()
            thread.join(_PATIENCE_S)
            if thread.is_alive():
                self._warn(f"{self.directory}: the disk does not take the last report in time")
        self._source = None

    def exception(self, errors: tuple[Error, ...], *, ends: bool = True) -> None:
        """Report an exception that ends the script, or another thread if `ends` is False.

        Blocks until the report is written, for at most 5 seconds.
        """
        if os.getpid() != self._process:
            return
        request = _Request("exception" if ends else "thread", errors)
        self._requests.append(request)
        with self._starting:
            if self._thread is None:
                threading.Thread(target=self._look_safely, daemon=True).start()
        self._wake.set()
        if not request.written.wait(_PATIENCE_S):
            self._warn(f"{self.directory}: the disk does not take the report in time")

    def look(self) -> None:
        """Write the events that are due: exceptions, failures, hangs, answers to other ranks."""
        with self._looking:
            requests = [self._requests.popleft() for _ in range(len(self._requests))]
            try:
                for request in requests:
                    self._write(request.kind, request.errors)
                if self._source is not None:
                    self._look_at(self._source)
            finally:
                for request in requests:
                    request.written.set()

    def _run(self) -> None:
        while self._thread is threading.current_thread():
            self._wake.wait(_LOOK_S)
            self._wake.clear()
            self._look_safely()
        self._look_safely()  # Some events may have come during the latest look.

    def _look_safely(self) -> None:
        """Look, and log an error of the report itself: the training does not depend on it."""
        try:
            self.look()
        except Exception as error:
            # The look calls the engine and reads the frames of any script, so an error may have any
            # type. An error that left this method would end the thread, and with it all reports.
            if self._is_new(f"{type(error).__name__}: {error}"):
                _log.warning("the report of rank %d failed", self.rank, exc_info=True)

    def _look_at(self, source: Source) -> None:
        failed, left_out = source.failures()
        if failed:
            self._write("failure", failed=failed, left_out=left_out)
        now_ns = self._now_ns()
        waiting = source.waiting()
        if waiting and now_ns - waiting[0].posted_ns > _SAMPLED_AFTER_NS:
            self._timed(source.rails(), now_ns)
        hanging = {_key(each) for each in waiting if self._hangs(each, now_ns)}
        if hanging:
            self._told = {_key(each) for each in waiting} & self._told | hanging
            self._write("hang")
        asked_ns = self._request_time_ns()
        if asked_ns > self._asked_ns:
            self._asked_ns = asked_ns
            if self._told_ns is None or now_ns - self._told_ns >= _QUIET_NS:
                self._write("asked")

    def _hangs(self, operation: OperationState, now_ns: int) -> bool:
        if not self._hang_ns or _key(operation) in self._told:
            return False
        limit_ns = max(self._hang_ns, _TIMES_THE_USUAL * operation.usual_ns)
        return now_ns - operation.posted_ns > limit_ns

    def _write(
        self,
        kind: str,
        errors: tuple[Error, ...] = (),
        failed: list[OperationState] | None = None,
        left_out: int = 0,
    ) -> None:
        """Add an event to the report and write it; `_looking` must be held."""
        source, now_ns = self._source, self._now_ns()
        waiting: list[OperationState] = []
        rails: list[RailState] = []
        if source is not None:
            if failed is None:
                failed, left_out = source.failures()
            waiting = source.waiting()
            rails = self._timed(source.rails(), now_ns)
        concerned = {part.rank for each in (*waiting, *(failed or ())) for part in each.missing}
        rails.sort(key=lambda rail: rail.peer not in concerned)
        self._events.append(
            Event(
                kind=kind,
                time_ns=time.time_ns(),
                monotonic_ns=now_ns,
                errors=errors,
                failed=tuple(_within_limits(each) for each in failed or ()),
                failed_left_out=left_out,
                waiting=tuple(_within_limits(each) for each in waiting[:_MOST_OPERATIONS]),
                rails=tuple(rails[:_MOST_RAILS]),
                threads=threads(),
                killed_for_memory=max(0, _killed_for_memory() - self._killed),
            )
        )
        if len(self._events) > _FIRST_EVENTS + _LATEST_EVENTS:
            del self._events[_FIRST_EVENTS]
            self._left_out += 1
        self._told_ns = now_ns
        try:
            write_report(self.directory, self._report())
            if kind != "asked":
                request_file_of(self.directory).touch()
                self._asked_ns = self._request_time_ns()
        except OSError as error:
            self._warn(f"{self.directory}: the report of rank {self.rank} is not written: {error}")

    def _report(self) -> Report:
        return Report(
            version=REPORT_VERSION,
            rank=self.rank,
            host=host_name(),
            clock=clock_name(),
            process=self._process,
            script=sys.argv[0] if sys.argv else "",
            versions=_versions(),
            left_out=self._left_out,
            events=tuple(self._events),
        )

    def _timed(self, rails: Sequence[tuple[RailState, int, int]], now_ns: int) -> list[RailState]:
        """Return the rails with the times at which their counts of frames were seen to change."""
        found = []
        for rail, sent, received in rails:
            place = rail.peer, rail.rail
            before = self._moved.get(place, (sent, received, 0, 0))
            sent_ns = now_ns if sent != before[0] else before[2]
            received_ns = now_ns if received != before[1] else before[3]
            self._moved[place] = sent, received, sent_ns, received_ns
            found.append(replace(rail, sent_ns=sent_ns, received_ns=received_ns))
        return found

    def _request_time_ns(self) -> int:
        try:
            return request_file_of(self.directory).stat().st_mtime_ns
        except OSError:
            return 0

    def _warn(self, sentence: str) -> None:
        if self._is_new(sentence):
            _log.warning("%s", sentence)

    def _is_new(self, problem: str) -> bool:
        """Return whether a problem has not been logged yet; False after eight other problems."""
        if problem in self._warned or len(self._warned) == _MOST_WARNINGS:
            return False
        self._warned.add(problem)
        return True


def _within_limits(operation: OperationState) -> OperationState:
    return replace(
        operation,
        members=operation.members[:_MOST_MEMBERS],
        missing=operation.missing[:_MOST_MEMBERS],
        waits_for=cut(operation.waits_for),
        message=cut(operation.message),
    )


def _key(operation: OperationState) -> OperationKey:
    return (
        operation.group,
        operation.kind,
        operation.tag,
        operation.sequence,
        operation.internal,
        operation.peer,
    )


def _versions() -> dict[str, str]:
    found = {"slackline": version(), "python": platform.python_version()}
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(getattr(torch, "__version__", ""))
    return found


def _killed_for_memory() -> int:
    """Return the number of processes on this host that the kernel has killed for lack of memory.

    The count begins at the host's boot; systems without it give 0.
    """
    try:
        for line in _VMSTAT.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except (OSError, ValueError):
        return 0
    return 0
