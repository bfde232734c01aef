"""A job: all of its ranks, links, decisions and findings."""

import heapq
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Self

from slackline.detect import Condition, Deduplicator, Episode, Report, Verdict
from slackline.errors import UsageError
from slackline.history._clocks import Clocks, shifted
from slackline.history._direction import Direction, directions_of
from slackline.history._files import files_of, new_files, read_all, telemetry_of
from slackline.history._link import Link
from slackline.history._rank import Rank
from slackline.history._state_hashes import StateHashes
from slackline.history._timed_tail import TimedTail
from slackline.records import (
    ClockOffset,
    Counters,
    Decision,
    DeviceReport,
    FileHeader,
    Gap,
    GroupOpened,
    LinkReport,
    LinkVerdict,
    Operations,
    PipelineStep,
    Promise,
    RailChange,
    Record,
    RunSummary,
    Setting,
    StateHash,
    StepSummary,
)
from slackline.units import count

__all__ = ["Finding", "Job", "verdict_of"]

_KEPT_DECISIONS = 500
_KEPT_FINDINGS = 500
_KEPT_PROBLEMS = 100

_PROCESS_ENDED = "its process has ended"
"""The words of the engine's reason for giving up a link whose peer has died."""

_TIMED_APART = (FileHeader, Operations, LinkReport)
"""The records whose time of writing is not that of their field `time_ns`."""

_AHEAD = 1000
"""The records of a file that are read ahead for the first probes: files may exceed the memory."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A change of a link's or a rank's health, told once for all ranks that have seen it."""

    time_ns: int
    """Unix time at which the finding was complete."""
    sentence: str
    """The sentence, such as "link 2>3 is slow since 12.4 s: 31 ms over its usual 0.2 ms"."""
    link: tuple[int, int, int] | None = None
    """Source, target and rail of the direction; None for a finding about a rank."""
    rank: int | None = None
    """The rank; None for a finding about a link."""
    broken: bool = False
    """Whether nothing arrives over the link any more."""


class Job:
    """The state of a job whose ranks write their telemetry into `directory`.

    Ranks, and their files, may appear at any time. All times are Unix time of the lowest rank's
    host, with which probes of links compare the clocks of other hosts.
    """

    def __init__(self, directory: Path) -> None:
        """Follow the files in `directory`, or in its folder "telemetry" if there is one.

        Raises UsageError if `directory` is not a directory.
        """
        self.directory = telemetry_of(directory)
        """The directory that holds the ranks' files."""
        self.ranks: dict[int, Rank] = {}
        """All ranks that have written, in rising order."""
        self.links: dict[tuple[int, int, int], Link] = {}
        """All rails with reports, by rank, peer and index of the rail."""
        self.decisions: deque[Decision] = deque(maxlen=_KEPT_DECISIONS)
        """The latest decisions of all ranks."""
        self.decision_counts: Counter[tuple[int, str]] = Counter()
        """The number of decisions so far, by rank and subject."""
        self.begun_ns = 0
        """The Unix time at which the first process began to write; 0 before its first record."""
        self.state_hash: tuple[int, str, bool] | None = None
        """The latest step that all ranks have hashed, the hash of the state after it, and whether
        it is exact; see `slackline.records.StateHash`."""
        self._hashes = StateHashes()
        self.settings: dict[tuple[int, str], Setting] = {}
        """The latest value of each setting, by rank and name."""
        self.findings: deque[Finding] = deque(maxlen=_KEPT_FINDINGS)
        """The latest findings about links and ranks."""
        self.problems: deque[str] = deque(maxlen=_KEPT_PROBLEMS)
        """Sentences about telemetry that is missing or could not be read, the latest ones."""
        self._clocks = Clocks()
        self._tails: dict[Path, TimedTail] = {}
        self._names: set[str] = set()
        """The names of everything in the directory so far."""
        self._health = Deduplicator(0)
        self._verdicts: list[LinkVerdict] = []
        self._told_ns = 0

    def check(self) -> None:
        """Raise UsageError with the reason if the directory has no record that can be read."""
        problems: list[str] = []
        for path in files_of(self.directory):
            if any(True for _ in read_all(path, problems.append)):
                return
        if problems:
            raise UsageError(problems[0])
        raise UsageError(
            f"{str(self.directory)!r} has no telemetry: no file rank-*.jsonl with a record"
        )

    @classmethod
    def recorded(cls, directory: Path) -> Self:
        """Return the job whose ranks have written into `directory`, with all records so far.

        Raises UsageError if `directory` is not a directory, and if it has no records that this
        version can read.
        """
        job = cls(directory)
        try:
            job.check()
            job.update()
        except OSError as error:
            raise UsageError(f"{error.filename!r} cannot be read: {error.strerror}") from error
        return job

    @property
    def episodes(self) -> list[Episode]:
        """Disturbances of links so far, in the order of their first reports."""
        return self._health.episodes

    @property
    def open_episodes(self) -> list[Episode]:
        """Disturbances of links that have not ended, in the order of their first reports."""
        return self._health.open_episodes

    @property
    def world_size(self) -> int:
        """The number of ranks in the job: the size of its largest group, or, if more, of ranks that
        have written records.
        """
        opened = [group.size for rank in self.ranks.values() for group in rank.groups.values()]
        return max([len(self.ranks), *opened])

    @property
    def unfinished(self) -> list[Path]:
        """The files that end within a line: the line is being written, or was cut."""
        return [path for path, tail in self._tails.items() if tail.cut]

    @property
    def apart(self) -> list[int]:
        """The ranks whose clocks cannot be compared: their times stay those of their own hosts."""
        return self._clocks.apart

    def queueing_ns(self, source: int, target: int) -> int | None:
        """Return the wait of the probes from one rank to another that one probe in five exceeds.

        The wait is the time beyond that of the fastest probe, since hosts' clocks may differ by a
        constant. None without probes of at least one end.
        """
        ways = self._clocks.one_way_ns(source, target)
        waits = sorted(each - min(taken) for taken in ways for each in taken)
        return waits[len(waits) * 4 // 5] if waits else None

    def directions(self) -> list[Direction]:
        """Return both directions of each rail with reports, the most disturbed ones first."""
        return directions_of(self.links, self.ranks, self.episodes)

    def update(self) -> int:
        """Read the records that ranks have added since the last call; return their number."""
        count = 0
        for _, record in self.added():
            self.take(record)
            count += 1
        self.settle(time.time_ns())
        return count

    def added(self) -> Iterator[tuple[int, Record]]:
        """Yield the records that ranks have added since the last call, in the order of their times.

        The caller passes each record to `take`. A record's time is the Unix time at which the rank
        wrote it, as far as the records state times, by the clock of the lowest rank's host as soon
        as a probe has compared the clocks.
        """
        for path in new_files(self.directory, self._names):
            self._tails[path] = TimedTail(path, self.problems.append)
        tails = [tail.read() for tail in self._tails.values()]
        heads = [list(islice(tail, _AHEAD)) for tail in tails]
        for _, record in chain.from_iterable(heads):
            # The first probes come later than the first records, whose times they correct.
            if isinstance(record, FileHeader):
                self._clocks.begin(record)
            elif isinstance(record, ClockOffset) and not self._clocks.knows(
                record.rank, record.peer
            ):
                self._clocks.take(record)
        timed = [chain(head, tail) for head, tail in zip(heads, tails, strict=True)]

        def common_ns(each: tuple[int, Record]) -> int:
            return each[0] + self._clocks.shift_ns(each[1].rank)

        for time_ns, record in heapq.merge(*timed, key=common_ns):
            shift_ns = self._clocks.shift_ns(record.rank)
            self._rank(record.rank).shift_ns = shift_ns
            yield time_ns + shift_ns, shifted(record, shift_ns)

    def finish(self) -> None:
        """Complete the findings that wait for the reports of other ranks, after the job's end."""
        for each in self._health.finish():
            self.findings.append(self._finding(self._told_ns, each))

    def take(self, record: Record) -> None:
        """Add one record of any rank, which no file needs to hold; `settle` makes the findings."""
        rank = self._rank(record.rank)
        if not isinstance(record, _TIMED_APART):
            rank.seen_ns = max(rank.seen_ns, getattr(record, "time_ns", 0))
        match record:
            case FileHeader():
                rank.header = record
                rank.processes += 1
                rank.counters = rank.run = None
                rank.leaving = False
                rank.ended_by.clear()
                rank.seen_ns = max(rank.seen_ns, record.time_ns + rank.shift_ns)
                self._clocks.begin(record)
                began_ns = record.time_ns + rank.shift_ns
                self.begun_ns = min(self.begun_ns or began_ns, began_ns)
            case StepSummary():
                rank.take_step(record)
            case PipelineStep():
                rank.take_pipeline(record)
            case Operations():
                try:
                    rank.take_operations(record)
                except (TypeError, ValueError) as error:  # Rows are read when they are needed.
                    self.problems.append(f"rank {record.rank}: operations are damaged: {error}")
            case GroupOpened():
                rank.open_group(record)
            case LinkReport():
                place = record.rank, record.peer, record.rail
                time_ns = rank.unix_ns(record.at_ns)
                rank.seen_ns = max(rank.seen_ns, time_ns)
                rank.rail_kinds[str(record.rail)] = record.kind
                link = self.links.get(place)
                if link is None:
                    link = self.links[place] = Link(*place)
                link.take(time_ns, record)
            case ClockOffset():
                self._clocks.take(record, rank.unix_ns(record.at_ns))
            case LinkVerdict():
                self._verdicts.append(record)
            case RailChange():
                if record.change == "leaving":
                    rank.leaving = True
                elif record.change == "down" and _PROCESS_ENDED in record.reason:
                    self._rank(record.peer).ended_by[record.rank] = record.time_ns
            case Decision():
                self.decisions.append(record)
                self.decision_counts[record.rank, record.subject] += 1
            case Promise():
                rank.take_promise(record)
            case Setting():
                self.settings[record.rank, record.name] = record
            case StateHash():
                whole = self._hashes.take(record)
                if whole and (self.state_hash is None or record.step >= self.state_hash[0]):
                    self.state_hash = record.step, *whole
            case Counters():
                rank.counters = record
            case DeviceReport():
                rank.device = record
            case RunSummary():
                rank.run = record
            case Gap():
                rank.lost += record.lost
                self.problems.append(
                    f"rank {record.rank}: {count(record.lost, 'record')} missing: {record.reason}"
                )
            case _:
                pass

    def settle(self, now_ns: int) -> None:
        """Merge the ranks' verdicts, in the order of their times, to findings.

        `now_ns` is the Unix time up to which findings are complete.
        """
        self._health.ranks = self.world_size
        for verdict in sorted(self._verdicts, key=lambda each: each.time_ns):
            # A host whose clock is ahead must not delay the finding until its time has come.
            heard_ns = min(verdict.time_ns, now_ns)
            self._tell(heard_ns)
            self._health.take(heard_ns, verdict.rank, verdict_of(verdict))
        self._verdicts.clear()
        self._tell(now_ns)

    def _rank(self, number: int) -> Rank:
        if number not in self.ranks:
            self.ranks = dict(sorted({**self.ranks, number: Rank(number)}.items()))
        return self.ranks[number]

    def _tell(self, now_ns: int) -> None:
        """Collect the findings that are complete by `now_ns`, each with its own time."""
        due = [at_ns for at_ns in self._health.due() if self._told_ns < at_ns < now_ns]
        for at_ns in (*due, now_ns):
            for each in self._health.lines(at_ns):
                self.findings.append(self._finding(at_ns, each))
        self._told_ns = max(self._told_ns, now_ns)

    def _finding(self, at_ns: int, report: Report) -> Finding:
        broken = any(
            (each.source, each.target, each.rail) == report.link and each.condition.broken
            for each in self._health.open_episodes
        )
        return Finding(at_ns, report.sentence, report.link, report.rank, broken)


def verdict_of(told: LinkVerdict) -> Verdict:
    """Return the verdict that a record holds."""
    return Verdict(
        time_ns=told.at_ns,
        since_ns=told.since_ns,
        condition=Condition(told.condition),
        source=told.source,
        target=told.target,
        rail=told.rail,
        reason=told.reason,
        over_ns=told.over_ns,
    )
