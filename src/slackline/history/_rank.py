"""The state of one rank: its process, its steps and its operations, from its records."""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from slackline._process_start import started
from slackline.history._history import StepHistory, Steps
from slackline.history._promised import Promised
from slackline.plan.collective import Collective
from slackline.records import (
    Counters,
    DeviceReport,
    FileHeader,
    GroupOpened,
    MedianStep,
    Operation,
    Operations,
    PipelineStep,
    Promise,
    RunSummary,
    StepSummary,
    Totals,
    process_names,
    rails_of,
)

__all__ = ["OperationTotals", "Rank", "State"]

_KEPT_STEPS = 500
_KEPT_PIPELINE_STEPS = 500
"""The number of pipeline steps that are kept: a step may have hundreds of instructions."""

_KEPT_PROMISES = 100
"""The number of predicted step times that are kept."""

_KEPT_WAITS = 4096
"""The number of waits for operations that are kept."""

_KEPT_BATCHES = 40
"""The number of batches of operations that are kept: ten seconds with four batches a second."""

_RECENT_STEPS = 50
"""The number of latest steps whose median is a rank's present pace."""

_MESSAGE = int(Collective.POINT_TO_POINT)
"""The code of a message between two ranks."""

_SILENT_NS = 5_000_000_000
"""The age of a rank's latest record from which the rank counts as silent."""

_QUIET_NS = 1_000_000_000
"""The age of a rank's latest record from which its process is looked for: running ranks write every
second."""


class State(StrEnum):
    """The state of a rank, as far as its records show."""

    RUNNING = "running"
    """The rank has written a record in the last five seconds."""
    SILENT = "silent"
    """The rank has written nothing for longer: it computes, hangs, or was killed."""
    ENDED = "ended"
    """The rank has written its final record."""
    GONE = "gone"
    """The rank's process no longer runs, and has written no final record."""


@dataclass(slots=True)
class OperationTotals:
    """Sums over all operations of one kind on one rank."""

    count: int = 0
    """Operations that have ended, failed ones included."""
    failed: int = 0
    """Operations that have failed."""
    bytes: int = 0
    """Bytes of the operations' whole buffers on this rank."""
    running_ns: int = 0
    """The sum of the times from each operation's post to its end."""
    waited_ns: int = 0
    """The sum of the times for which a thread was blocked until an operation's end."""

    def add(self, operation: Operation) -> None:
        """Add an operation that has ended."""
        self.count += 1
        self.failed += operation.failed
        self.bytes += operation.bytes
        self.running_ns += operation.ended_ns - operation.posted_ns
        self.waited_ns += operation.waited_ns

    def merge(self, other: "OperationTotals") -> None:
        """Add the sums over other operations."""
        self.count += other.count
        self.failed += other.failed
        self.bytes += other.bytes
        self.running_ns += other.running_ns
        self.waited_ns += other.waited_ns


class Call(NamedTuple):
    """A collective of the program that has ended on a rank."""

    posted_ns: int
    """The Unix time at which the rank posted the collective."""
    ended_ns: int
    """The Unix time at which the collective ended on the rank."""
    size: tuple[int, int, int]
    """The number of the group, the code of the collective, and the bytes of its buffer."""


class Rank:
    """The state of one rank, from its records."""

    def __init__(self, number: int) -> None:
        self.number = number
        """The rank in the job."""
        self.header: FileHeader | None = None
        """The description of the rank's latest process; None before its first record."""
        self.shift_ns = 0
        """The time that is added to the Unix time of the rank's host, so that all hosts agree."""
        self.processes = 0
        """The number of processes that have written for this rank: 2 after one restart."""
        self.seen_ns = 0
        """The Unix time of the latest record that states a time; 0 before the first."""
        self.groups: dict[int, GroupOpened] = {}
        """The groups that the rank has opened, by their number (epoch)."""
        self.steps: deque[StepSummary] = deque(maxlen=_KEPT_STEPS)
        """The latest optimizer steps, the oldest first."""
        self.history = StepHistory()
        """The times of all optimizer steps, summed up."""
        self.wall_ns = 0
        """The duration of all optimizer steps of the first optimizer."""
        self.exposed_ns = 0
        """Exposed communication in all optimizer steps."""
        self.hidden_ns: int | None = None
        """Hidden communication in the optimizer steps in which it is known; None without any."""
        self.reduced_bytes = 0
        """Bytes of gradients that the rank gave to reductions in all steps."""
        self.pipeline_count = 0
        """The number of pipeline steps."""
        self.pipeline: deque[PipelineStep] = deque(maxlen=_KEPT_PIPELINE_STEPS)
        """The latest pipeline steps, the oldest first."""
        self.pipeline_history = StepHistory()
        """The times of all pipeline steps, summed up; a wait for other stages counts as exposed."""
        self.pipeline_wall_ns = 0
        """The duration of all pipeline steps."""
        self.pipeline_computing_ns = 0
        """Time of all pipeline steps in which the rank computed."""
        self.pipeline_waiting_ns = 0
        """Time of all pipeline steps in which no instruction was ready."""
        self.plan_changes = 0
        """The number of pipeline steps with another plan than the step before."""
        self.operations: deque[Operations] = deque(maxlen=_KEPT_BATCHES)
        """The latest batches of operations, the oldest first."""
        self.group_totals: dict[tuple[tuple[int, ...], str], OperationTotals] = {}
        """Sums over all operations of the program, by the members of the operations' group and by
        kind: "all_reduce", "send". Groups whose opening is missing from the file share the key
        without members."""
        self.rail_kinds: dict[str, str] = {"shm": "shm"}
        """The kind of each rail, by the rail's name: {"shm": "shm", "0": "tcp"}."""
        self.waits: deque[tuple[int, int]] = deque(maxlen=_KEPT_WAITS)
        """The latest times, from and until in Unix time, in which a thread was blocked until the
        end of an operation, in the order of the operations' ends."""
        self.calls: deque[Call] = deque(maxlen=_KEPT_WAITS)
        """The latest collectives of the program, in the order of their ends."""
        self.operations_ns = 0
        """The Unix time at which the latest operation in a record ended; 0 without one."""
        self.failed_ns = 0
        """The Unix time at which the rank's latest failed operation ended; 0 without one."""
        self.leaving = False
        """Whether the rank has begun to close its engine, in good order."""
        self.ended_by: dict[int, int] = {}
        """The Unix times at which other ranks have found that the rank's process had ended."""
        self.lost = 0
        """The number of records and operations that are missing from the rank's file."""
        self.counters: Counters | None = None
        """The engine's counters at its end; None while the engine runs."""
        self.device: DeviceReport | None = None
        """The latest report about the device that adds for the rank; None without a device."""
        self.run: RunSummary | None = None
        """The sums over all steps; None until the wrapper around the optimizer is closed."""
        self.promises: deque[Promised] = deque(maxlen=_KEPT_PROMISES)
        """The latest predicted step times, each with the steps that it was about."""
        self._present: dict[str, Promised] = {}
        self._medians: dict[int, MedianStep] = {}
        self._sums = Totals(number)
        self._used_rails = 0
        self._used_names: set[str] = set()
        self._totals_of: dict[tuple[int, int, int], OperationTotals] = {}

    @property
    def step_count(self) -> int:
        """The number of steps of the optimizer that has spent the most time."""
        return self._sums.run().steps

    @property
    def rails(self) -> tuple[str, ...]:
        """The kinds of rails (paths to peers, such as tcp or shm) that carried frames.

        A rank that has died wrote no totals; then the kinds follow from the operations that the
        rank recorded until then, and from its reports about its links.
        """
        if self.run is not None and self.run.rails:
            return self.run.rails
        if self.counters is None:
            known = self._used_names & self.rail_kinds.keys()
            return tuple(sorted({self.rail_kinds[name] for name in known}))
        return rails_of(self.counters.values)

    @property
    def ended(self) -> bool:
        """Whether the rank has written its final record.

        The final record of a rank with an engine is `Counters`, of another rank `RunSummary`.
        """
        return (self.counters if self.groups else self.run) is not None

    def state(self, now_ns: int) -> State:
        """Return the rank's state at the Unix time `now_ns`.

        A process on another host, or in a container with numbers of its own for processes, cannot
        be looked for: such a rank is silent, not gone.
        """
        if self.ended:
            return State.ENDED
        quiet_ns = now_ns - self.seen_ns
        if quiet_ns > _QUIET_NS and self._gone:
            return State.GONE
        return State.SILENT if quiet_ns > _SILENT_NS else State.RUNNING

    @property
    def _gone(self) -> bool:
        """Whether the rank's process is known to have ended."""
        header = self.header
        if header is None or not header.processes or header.processes != process_names():
            return False
        return started(header.process) is None

    @property
    def totals(self) -> dict[str, OperationTotals]:
        """Sums over all operations of the program, by kind."""
        found: dict[str, OperationTotals] = {}
        for (_, kind), totals in self.group_totals.items():
            found.setdefault(kind, OperationTotals()).merge(totals)
        return found

    def unix_ns(self, monotonic_ns: int) -> int:
        """Convert a time of the rank's CLOCK_MONOTONIC to the job's Unix time, in nanoseconds.

        Without a header the time is returned unchanged.
        """
        if self.header is None:
            return monotonic_ns
        return monotonic_ns - self.header.monotonic_ns + self.header.time_ns + self.shift_ns

    def median_step(self, recent: int = _RECENT_STEPS) -> MedianStep:
        """Return the median of the latest `recent` optimizer steps."""
        if recent not in self._medians:  # Several parts of a view ask after each new step.
            self._medians[recent] = MedianStep(islice(reversed(self.steps), recent))
        return self._medians[recent]

    def take_operations(self, batch: Operations) -> None:
        """Add a batch of operations; operations of the library itself are left out of the sums.

        Raises ValueError for an operation of no known kind.
        """
        self.lost += batch.lost
        begun_ns, totals_of = self.unix_ns(0), self._totals_of
        latest_ns = seen_ns = 0
        for each in batch.rows:  # Thousands of rows a second, so each line counts.
            if each.rails & ~self._used_rails:
                self._used_rails |= each.rails
                self._used_names.update(each.rail_names)
            ended_ns = begun_ns + each.ended_ns
            if ended_ns > latest_ns:
                latest_ns = ended_ns
            if each.waited_ns:
                self.waits.append((ended_ns - each.waited_ns, ended_ns))
            if each.failed:
                self.failed_ns = max(self.failed_ns, ended_ns)
            if each.internal:
                continue
            if each.collective != _MESSAGE:
                size = each.group, each.collective, each.bytes
                self.calls.append(Call(begun_ns + each.posted_ns, ended_ns, size))
            totals = totals_of.get((each.group, each.collective, each.receives))
            (totals or self._begin_totals(each)).add(each)
            if ended_ns > seen_ns:
                seen_ns = ended_ns
        self.operations_ns = max(self.operations_ns, latest_ns)
        self.seen_ns = max(self.seen_ns, seen_ns)
        self.operations.append(batch)

    def open_group(self, group: GroupOpened) -> None:
        """Add the opening of a group."""
        self.groups[group.epoch] = group
        self.counters = None
        self.leaving = False
        self._totals_of.clear()

    def _begin_totals(self, operation: Operation) -> OperationTotals:
        """Return the sums to which an operation belongs, the first of its kind in its group."""
        opened = self.groups.get(operation.group)
        members = () if opened is None else opened.members
        totals = self.group_totals.setdefault((members, operation.kind), OperationTotals())
        self._totals_of[operation.group, operation.collective, operation.receives] = totals
        return totals

    def take_promise(self, promise: Promise) -> None:
        """Add a predicted step time, which replaces the one before of the same source."""
        self._present[promise.source] = Promised(promise)
        self.promises.append(self._present[promise.source])

    def take_step(self, step: StepSummary) -> None:
        """Add an optimizer step."""
        self.steps.append(step)
        self._medians.clear()
        self._sums.add(step)
        first = step.optimizer == 0
        wall_ns = step.wall_ns if first else 0
        self.wall_ns += wall_ns
        if first:
            self._fulfil("groups", step.time_ns - wall_ns, wall_ns)
        self.history.add(Steps(first, wall_ns, wall_ns, step.exposed_ns, step.time_ns))
        self.exposed_ns += step.exposed_ns
        if step.hidden_ns is not None:
            self.hidden_ns = (self.hidden_ns or 0) + step.hidden_ns
        self.reduced_bytes += step.reduced_bytes

    def take_pipeline(self, step: PipelineStep) -> None:
        """Add a pipeline step."""
        self.pipeline.append(step)
        self.pipeline_count += 1
        ended_ns = step.time_ns + step.wall_ns
        self._fulfil("schedule", step.time_ns, step.wall_ns)
        self.pipeline_history.add(Steps(1, step.wall_ns, step.wall_ns, step.waiting_ns, ended_ns))
        self.pipeline_wall_ns += step.wall_ns
        self.pipeline_computing_ns += step.computing_ns
        self.pipeline_waiting_ns += step.waiting_ns
        self.plan_changes += bool(step.change)

    def _fulfil(self, source: str, began_ns: int, wall_ns: int) -> None:
        """Add a step to the present prediction of a source, if the step began after it."""
        promised = self._present.get(source)
        if promised is not None and began_ns >= promised.promise.time_ns:
            promised.add(wall_ns)
