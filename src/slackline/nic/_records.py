"""The telemetry that one engine writes to its process's file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol

from slackline.records import (
    DEFAULT_LIMIT_BYTES,
    CoreTimes,
    Counters,
    Decision,
    DeviceReport,
    GroupOpened,
    OperationsText,
    RailChange,
    RecordLog,
    Setting,
    StepSummary,
    Writer,
    Written,
    open_core_times,
)

__all__ = ["Decide", "Records"]

_RING = 1 << 14
"""The size of the engine's ring of records: the operations that may end between two readings."""

_POLL_S = 0.25
"""The time between two readings of the ring for a log without a file."""

Decide = Callable[[str, str, str], None]
"""A function that receives a decision: its subject, the choice and the reason."""


class OperationLog(Protocol):
    """The methods of an engine by which its records of operations are read."""

    def log_operations(self, capacity: int) -> None: ...
    def logged_sums(self) -> tuple[int, int, int]: ...
    def logged_operations(self) -> tuple[bytes, int, int]: ...


class RailEvent(Protocol):
    """The fields of an engine's RailEvent that are written."""

    @property
    def link(self) -> int: ...
    @property
    def rail(self) -> int: ...
    @property
    def what(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def time_ns(self) -> int: ...


class Records:
    """The writer of an engine's telemetry, whose file is named by the process's rank in the job.

    The first group that the engine opens gives the rank. Any thread may call the methods; only
    `close` waits for the disk.
    """

    def __init__(
        self,
        directory: Path | None,
        limit_bytes: int | None = None,
        *,
        settings: Mapping[str, tuple[str, str]] = MappingProxyType({}),
        log: RecordLog | None = None,
    ) -> None:
        """Create a writer to a file in `directory`, which the first group opens, and to `log`.

        `settings` has the value and the origin of each setting of the engine, by name; they are
        written when the first group opens.
        """
        self._directory = directory
        self._lines = log
        self._closed = threading.Event()
        self._known = False
        self._limit_bytes = DEFAULT_LIMIT_BYTES if limit_bytes is None else limit_bytes
        self._settings = settings
        self._writer: Writer | None = None
        self._rank = -1
        self._log: OperationLog | None = None
        self._reading = threading.Lock()
        self._peers: dict[int, int] = {}
        self._steps: dict[int, _Steps] = {}
        self._latest = _Reading(time.monotonic_ns(), 0, 0, 0, None)

    def follow(self, log: OperationLog) -> None:
        """Have a new engine record its operations, which are written from the first group on."""
        shows_steps = self._lines is not None and self._lines.shows("step", "debug")
        if self._directory is not None or self._shows_operations or shows_steps:
            log.log_operations(_RING)
            self._log = log

    def opened(
        self,
        rank: int,
        size: int,
        *,
        epoch: int = 0,
        members: Sequence[int] = (),
        links: Sequence[int] = (),
    ) -> None:
        """Write a record that the links of a group of `size` ranks are connected.

        After `close` the call does nothing.

        `rank` is this process's rank in the job, `epoch` the group's number, `members` the members'
        ranks in the job, and `links` the engine's numbers of the links to the members.
        """
        if self._closed.is_set():
            return
        names = tuple(members) or tuple(range(size))
        self._peers.update(zip(links, names, strict=False))
        if not self._known:
            self._known = True
            self._rank = rank
            self._latest = _Reading(time.monotonic_ns(), 0, 0, 0, None)
            if self._directory is not None:
                self._writer = Writer(self._directory, rank, limit_bytes=self._limit_bytes)
                self._writer.poll(self._operations)
            elif self._shows_operations:
                threading.Thread(target=self._poll, name="slackline-log", daemon=True).start()
            now_ns = time.time_ns()
            for name, (value, origin) in self._settings.items():
                self.write(
                    Setting(rank=rank, time_ns=now_ns, name=name, value=value, origin=origin)
                )
        self.write(
            GroupOpened(
                rank=self._rank, time_ns=time.time_ns(), size=size, epoch=epoch, members=names
            )
        )

    def write(self, record: Written) -> None:
        """Hand a record to the file and to the log; do nothing before the first group."""
        if (writer := self._writer) is not None:
            writer.write(record)
        if self._lines is not None and self._known:
            self._lines.take(record)

    def decided(self, subject: str, choice: str, reason: str) -> None:
        """Write a record of a decision: the subject, such as "plan", the choice and the reason."""
        self.write(
            Decision(
                rank=self._rank,
                time_ns=time.time_ns(),
                subject=subject,
                choice=choice,
                reason=reason,
            )
        )

    def device_counted(self, device: str, counters: Mapping[str, int]) -> None:
        """Write the present counters of the rank's devices of one kind, all groups together."""
        self.write(DeviceReport.of(self._rank, time.time_ns(), device, counters))

    def rail_changed(self, event: RailEvent) -> None:
        """Write the failure or the return of a rail, or the end of a link."""
        if event.what == "wanted":
            return  # The link gets its first rail.
        self.write(
            RailChange(
                rank=self._rank,
                time_ns=time.time_ns() - time.monotonic_ns() + event.time_ns,
                peer=self._peers.get(event.link, -1),
                rail=event.rail,
                change=event.what,
                reason=event.reason,
            )
        )
        if event.what == "down":
            self._peers.pop(event.link, None)  # The engine gives no other link this number.

    def stepped(self, optimizer: int) -> None:
        """Write the step of the program's optimizer with this index, which begins now.

        The first step of an optimizer counts from the latest step of any optimizer, or else from
        the opening of the first group.
        """
        if not self._known or self._log is None:
            return
        steps = self._steps.get(optimizer)
        if steps is None:
            cores = open_core_times() if optimizer == 0 else None
            steps = self._steps[optimizer] = _Steps(self._rank, optimizer, self._latest, cores)
        self.write(steps.step(*self._log.logged_sums()))
        self._latest = steps.latest

    def leaving(self) -> None:
        """Write that the engine is about to close, and wait until the record is in the file.

        The engines of other ranks may find that the process has ended before its last record.
        """
        self.write(
            RailChange(
                rank=self._rank,
                time_ns=time.time_ns(),
                peer=self._rank,
                rail=-1,
                change="leaving",
                reason="the rank closes its engine",
            )
        )
        if (writer := self._writer) is not None:
            writer.flush()

    def close(self, counters: Mapping[str, int]) -> None:
        """Write the engine's final counters and close the file; a second call does nothing."""
        if self._closed.is_set():
            return
        self._closed.set()
        operations = self._operations()
        if self._writer is not None:
            for record in operations:
                self._writer.write(record)
        self.write(Counters(rank=self._rank, time_ns=time.time_ns(), values=dict(counters)))
        self._known = False
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    @property
    def _shows_operations(self) -> bool:
        return self._lines is not None and self._lines.shows("operation", "trace")

    def _poll(self) -> None:
        """Show the operations four times a second, in place of the thread of a file."""
        while not self._closed.wait(_POLL_S):
            self._operations()

    def _operations(self) -> list[Written]:
        """Return the operations that have ended since the previous call, as one record or none."""
        if self._log is None:
            return []
        with self._reading:
            rows, count, lost = self._log.logged_operations()
        if not count and not lost:
            return []
        record = OperationsText(rank=self._rank, lost=lost, rows=rows.decode())
        if self._lines is not None:
            self._lines.take(record)
        return [record]


class _Steps:
    """The steps of one optimizer of the program.

    A thread may wait for an operation in torch's own code, as DistributedDataParallel does. The
    engine sees no such wait, but Linux counts the time for which the thread was on no core and
    waited for none. As much of that time as the operations of the step took counts as exposed.
    """

    def __init__(
        self,
        rank: int,
        optimizer: int,
        began: _Reading,
        core_times: Callable[[], CoreTimes] | None,
    ) -> None:
        """Begin the first step at a reading; `core_times` reads the times of the thread.

        The times on a core are not known for the first step, which began elsewhere.
        """
        self._rank, self._optimizer, self._number = rank, optimizer, 0
        self._core_times = core_times
        self.latest = began._replace(on_core=None)
        """The end of the latest step."""

    def step(self, waited_ns: int, running_ns: int, reduced_bytes: int) -> StepSummary:
        """Return the step that ends now, from the sums over all operations so far."""
        time.thread_time_ns()  # The kernel adds up the thread's time on a core at this reading.
        on_core = None if self._core_times is None else self._core_times()
        before = self.latest
        now = _Reading(time.monotonic_ns(), waited_ns, running_ns, reduced_bytes, on_core)
        self.latest = now
        wall_ns = now.time_ns - before.time_ns
        exposed_ns = waited_ns - before.waited_ns
        run_ns = delay_ns = None
        if on_core is not None and before.on_core is not None:
            run_ns, delay_ns = on_core.since(before.on_core)
            stood_ns = wall_ns - run_ns - delay_ns
            exposed_ns = max(exposed_ns, min(stood_ns, running_ns - before.running_ns))
        summary = StepSummary(
            rank=self._rank,
            step=self._number,
            optimizer=self._optimizer,
            time_ns=time.time_ns(),
            wall_ns=wall_ns,
            exposed_ns=min(exposed_ns, wall_ns),
            reduced_bytes=reduced_bytes - before.reduced_bytes,
            parameters=0,
            waited=0,
            plain=True,
            detailed=False,
            run_ns=run_ns,
            run_delay_ns=delay_ns,
        )
        self._number += 1
        return summary


class _Reading(NamedTuple):
    """The clocks and the sums over operations at the end of a step."""

    time_ns: int
    waited_ns: int
    running_ns: int
    reduced_bytes: int
    on_core: CoreTimes | None
