"""A job's telemetry as a progress line while it runs, and as tables at its end.

Rates are computed from the median step, so work of the script between its steps, such as a test or
a checkpoint, does not count as training.
"""

import statistics
from datetime import timedelta
from pathlib import Path
from time import monotonic, monotonic_ns

from rich.table import Table

from slackline.cli._display._pipeline_steps import PipelineTimes, pace, pipeline_table, times_of
from slackline.health import Deduplicator
from slackline.monitor import verdict_of
from slackline.telemetry import (
    Counters,
    Gap,
    GroupOpened,
    LinkReport,
    LinkVerdict,
    MedianStep,
    Operations,
    PipelineStep,
    Record,
    RecordTail,
    RunSummary,
    StepSummary,
    file_of,
    rails_of,
)

__all__ = ["RankReport", "Report", "decimal_bytes"]

_RECENT = 50
"""The number of recent steps that the progress line covers."""

_MOST_EPISODES = 20
"""The most rows of the table of links."""

_MOST_PROBLEMS = 5
"""The largest number of sentences about telemetry that could not be read."""


class RankReport:
    """The telemetry records of one rank, read while the rank writes them."""

    def __init__(self, path: Path) -> None:
        self.steps: list[StepSummary] = []
        self.pipeline: list[PipelineTimes] = []
        self.opened = False
        self.counters: Counters | None = None
        self.run: RunSummary | None = None
        self.verdicts: list[LinkVerdict] = []
        self.problems: list[str] = []
        self._used: set[str] = set()
        self._kinds: dict[str, str] = {"shm": "shm"}
        self._path = path
        self._tail = RecordTail(path, self.problems.append)

    def update(self) -> None:
        """Read the lines that are complete by now; a line that is no record goes to `problems`."""
        for record in self._tail.read():
            self._take(record)

    def _take(self, record: Record) -> None:
        match record:
            case StepSummary():
                self.steps.append(record)
            case PipelineStep():
                self.pipeline.append(times_of(record))
            case GroupOpened():
                self.opened = True
            case Counters():
                self.counters = record
            case RunSummary():
                self.run = record
            case LinkVerdict():
                self.verdicts.append(record)
            case Operations():
                self._used.update(record.rail_names)
            case LinkReport():
                self._kinds[str(record.rail)] = record.kind
            case Gap():
                self.problems.append(
                    f"{self._path}: {record.lost} records are missing: {record.reason}"
                )
            case _:
                pass

    def problems_at_end(self) -> list[str]:
        """Return a sentence for each part of the file that could not be read or written."""
        if self._tail.cut:
            return [*self.problems, f"{self._path}: the last line is cut"]
        return self.problems

    @property
    def rails(self) -> tuple[str, ...]:
        """The kinds of rails (paths to peers, such as tcp or shm) that carried frames.

        A rank that has died wrote no totals; then the kinds follow from the operations that the
        rank recorded until then, and from its reports about its links.
        """
        if self.run is not None and self.run.rails:
            return self.run.rails
        if self.counters is None:
            return tuple(sorted({self._kinds[rail] for rail in self._used & self._kinds.keys()}))
        return rails_of(self.counters.values)


class Report:
    """The telemetry that a job's ranks write into `directory`, read while it grows."""

    def __init__(
        self, directory: Path, *, ranks: int, first: int = 0, world: int | None = None
    ) -> None:
        """Read the files of `ranks` ranks, from number `first` on; the job has `world` ranks.

        Without `world` the job has no other ranks.
        """
        self._start_s = monotonic()
        self._first = first
        self.ranks = [RankReport(file_of(directory, rank)) for rank in range(first, first + ranks)]
        self._deduplicator = Deduplicator(ranks if world is None else world)

    def update(self) -> None:
        """Read the records that the ranks have added since the last call."""
        for rank in self.ranks:
            rank.update()

    def opened(self) -> list[int]:
        """Return the ranks that have opened a group of slackline."""
        return [number for number, rank in enumerate(self.ranks, self._first) if rank.opened]

    def news(self, *, ended: bool = False) -> list[str]:
        """Return new messages about links and ranks, one line each.

        `ended` also returns messages that would otherwise be held back for a while.
        """
        now_ns = monotonic_ns()
        for rank in self.ranks:
            for told in rank.verdicts:
                self._deduplicator.take(now_ns, told.rank, verdict_of(told))
            rank.verdicts.clear()
        return self._deduplicator.finish() if ended else self._deduplicator.lines(now_ns)

    def progress(self) -> str:
        """Return the job's progress as one line."""
        elapsed = timedelta(seconds=round(monotonic() - self._start_s))
        steps = [MedianStep(rank.steps) for rank in self.ranks]
        counts = [each.count for each in steps]
        head = f"{len(counts)} {'rank' if len(counts) == 1 else 'ranks'}, {elapsed}"
        if not min(counts):
            if not (least := min(len(rank.pipeline) for rank in self.ranks)):
                return f"{head}: running"
            recent = [step for rank in self.ranks for step in rank.pipeline[-_RECENT:]]
            return f"{head}: step {least}, {pace(recent)}"
        recently = [MedianStep(rank.steps[-_RECENT:]) for rank in self.ranks]
        wall_ns = statistics.median(each.wall_ns for each in recently)
        exposed_ns = statistics.median(each.exposed_ns for each in recently)
        return (
            f"{head}: step {min(counts)}, {1e9 / max(wall_ns, 1):.1f} steps/s, "
            f"{exposed_ns / 1e6:.2f} ms exposed a step ({_share(exposed_ns, wall_ns)})"
        )

    def table(self) -> Table | None:
        """Return a table with a row for each rank; None if no rank reported a training step."""
        if not any(rank.steps for rank in self.ranks):
            return None
        table = Table(caption="of the median step; exposed: the training thread stood still")
        for column in ("rank", "steps", "steps/s", "reduced", "exposed", "share", "rails"):
            table.add_column(column, justify="left" if column == "rails" else "right")
        for number, rank in enumerate(self.ranks, self._first):
            table.add_row(str(number), *_row(rank))
        return table

    def pipelines(self) -> Table | None:
        """Return a table of pipeline steps with a row for each rank; None if no pipeline ran."""
        return pipeline_table([rank.pipeline for rank in self.ranks], self._first)

    def problems(self) -> list[str]:
        """Return a sentence for each part of the telemetry that is missing, a few at most."""
        found = [sentence for rank in self.ranks for sentence in rank.problems_at_end()]
        if len(found) > _MOST_PROBLEMS:
            more = len(found) - _MOST_PROBLEMS
            return [*found[:_MOST_PROBLEMS], f"and {more} more such notes about the telemetry"]
        return found

    def links(self) -> Table | None:
        """Return a table with a row for each disturbance of a link, or None if there was none."""
        episodes = self._deduplicator.episodes
        if not episodes:
            return None
        table = Table(caption="times count from the opening of the group")
        for column in ("link", "was", "from", "for", "what was said last"):
            table.add_column(column, justify="right" if column in ("from", "for") else "left")
        for each in episodes[:_MOST_EPISODES]:
            since, until = each.since_ns, each.until_ns
            lasted = "to the end" if until is None else f"{(until - since) / 1e9:.1f} s"
            direction = f"{each.source}>{each.target}"
            table.add_row(direction, each.condition, f"{since / 1e9:.1f} s", lasted, each.reason)
        if len(episodes) > _MOST_EPISODES:
            table.add_row("", "", "", "", f"and {len(episodes) - _MOST_EPISODES} more")
        return table


def _row(rank: RankReport) -> tuple[str, ...]:
    if not rank.steps:
        return ("0",)
    steps = MedianStep(rank.steps)
    return (
        str(steps.count),
        f"{1e9 / max(steps.wall_ns, 1):.1f}",
        decimal_bytes(sum(step.reduced_bytes for step in rank.steps)),
        f"{steps.exposed_ns / 1e6:.2f} ms",
        _share(steps.exposed_ns, steps.wall_ns),
        "+".join(rank.rails) or "-",
    )


def _share(part_ns: float, whole_ns: float) -> str:
    return f"{part_ns / max(whole_ns, 1):.1%}"


def decimal_bytes(count: int) -> str:
    """Format a size in decimal units for people: 1234567 is "1.23 MB"."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{count} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
