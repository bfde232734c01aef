"""A job's telemetry as a progress line while it runs, and as tables at its end.

Rates are computed from the median step, so work of the script between its steps, such as a test or
a checkpoint, does not count as training.
"""

import statistics
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from time import monotonic, time_ns

from rich.table import Table

from slackline.cli._display._pipeline_steps import pace, pipeline_table
from slackline.diagnose import Watch, recurrences
from slackline.monitor import Job, Rank, disturbances
from slackline.telemetry import MedianStep

__all__ = ["Report", "decimal_bytes"]

_RECENT = 50
"""The number of recent steps that the progress line covers."""

_MOST_DISTURBANCES = 20
"""The most rows of the table of links."""

_MOST_PROBLEMS = 5
"""The largest number of sentences about telemetry that could not be read."""


class Report:
    """The telemetry that a job's ranks write into `directory`, read while it grows."""

    def __init__(
        self,
        directory: Path,
        *,
        ranks: int,
        first: int = 0,
        unix: Callable[[], int] = time_ns,
    ) -> None:
        """Report on `ranks` ranks, from number `first` on, whose files are in `directory`.

        `unix` returns the Unix time in nanoseconds, for the diagnosis.
        """
        self._start_s = monotonic()
        self._numbers = range(first, first + ranks)
        self.job = Job(directory)
        """The state of the job."""
        self._watch = Watch(self.job)
        self._unix = unix

    @property
    def ranks(self) -> list[Rank]:
        """The ranks in rising order; a rank that has written nothing is empty."""
        known = self.job.ranks
        return [known[number] if number in known else Rank(number) for number in self._numbers]

    def update(self) -> None:
        """Read the records that the ranks have added since the last call."""
        self._watch.update(self._unix())

    def opened(self) -> list[int]:
        """Return the ranks that have opened a group of slackline."""
        return [rank.number for rank in self.ranks if rank.groups]

    def news(self, *, ended: bool = False) -> list[str]:
        """Return new messages about links and ranks, and new causes of slow steps, one line each.

        `ended` also returns messages that would otherwise be held back for a while.
        """
        if ended:
            self.job.finish()
        told = [finding.sentence for finding in self.job.findings]
        self.job.findings.clear()
        # The messages about a single link are those about its cause and about its end already.
        causes = self._watch.take_named()
        told += [f"cause: {each.sentence}" for each in causes if not each.told_by_verdicts]
        over = self._watch.take_ended()
        return told + [f"over: {each.ending}" for each in over if not each.cause.told_by_verdicts]

    def progress(self) -> str:
        """Return the job's progress as one line."""
        elapsed = timedelta(seconds=round(monotonic() - self._start_s))
        ranks = self.ranks
        head = f"{len(ranks)} {'rank' if len(ranks) == 1 else 'ranks'}, {elapsed}"
        steps = min(rank.step_count for rank in ranks)
        if not steps:
            if not (least := min(rank.pipeline_count for rank in ranks)):
                return f"{head}: running"
            recent = [step for rank in ranks for step in list(rank.pipeline)[-_RECENT:]]
            return f"{head}: step {least}, {pace(recent)}"
        recently = [rank.median_step(_RECENT) for rank in ranks]
        wall_ns = statistics.median(each.wall_ns for each in recently)
        exposed_ns = statistics.median(each.exposed_ns for each in recently)
        return (
            f"{head}: step {steps}, {1e9 / max(wall_ns, 1):.1f} steps/s, "
            f"{exposed_ns / 1e6:.2f} ms exposed a step ({_share(exposed_ns, wall_ns)})"
        )

    def table(self) -> Table | None:
        """Return a table with a row for each rank; None if no rank reported a training step."""
        if not any(rank.steps for rank in self.ranks):
            return None
        table = Table(caption="of the median step; exposed: the training thread stood still")
        for column in ("rank", "steps", "steps/s", "reduced", "exposed", "share", "rails"):
            table.add_column(column, justify="left" if column == "rails" else "right")
        for rank in self.ranks:
            table.add_row(str(rank.number), *_row(rank))
        return table

    def pipelines(self) -> Table | None:
        """Return a table of pipeline steps with a row for each rank; None if no pipeline ran."""
        return pipeline_table(self.ranks)

    def problems(self) -> list[str]:
        """Return a sentence for each part of the telemetry that is missing, a few at most."""
        cut = [f"{path}: the last line is cut" for path in self.job.unfinished]
        found = [*self.job.problems, *cut]
        if len(found) > _MOST_PROBLEMS:
            more = len(found) - _MOST_PROBLEMS
            return [*found[:_MOST_PROBLEMS], f"and {more} more such notes about the telemetry"]
        return found

    def causes(self) -> Table | None:
        """Return a table with a row for each cause but changes of links; None without any.

        A cause that came several times has one row.
        """
        found = recurrences(self._watch.spells)
        found = [each for each in found if not each.cause.told_by_verdicts]
        if not found:
            return None
        opened_ns = [group.time_ns for rank in self.ranks for group in rank.groups.values()]
        start_ns = min(opened_ns, default=self.job.begun_ns)
        table = Table(caption="times count from the opening of the first group")
        for column in ("cause", "times", "in all", "first at", "evidence"):
            right = column in ("times", "in all", "first at")
            table.add_column(column, justify="right" if right else "left")
        for each in found:
            cause = each.cause
            first = f"{(each.first_ns - start_ns) / 1e9:.1f} s"
            evidence = cause.sentence.removeprefix(f"{cause.name}: ")
            table.add_row(cause.name, str(each.times), each.total, first, evidence)
        return table

    def links(self) -> Table | None:
        """Return a table with a row for each rail of a link and condition; None without any."""
        found = disturbances(self.job.episodes, self.job.links)
        if not found:
            return None
        table = Table(caption="times count from the opening of the group")
        for column in ("link", "was", "times", "in all", "first at", "said last"):
            right = column in ("times", "in all", "first at")
            table.add_column(column, justify="right" if right else "left")
        for each in found[:_MOST_DISTURBANCES]:
            first = f"{each.first_ns / 1e9:.1f} s"
            table.add_row(
                each.name, each.condition, str(each.times), each.total, first, each.reason
            )
        if len(found) > _MOST_DISTURBANCES:
            table.add_row("", "", "", "", "", f"and {len(found) - _MOST_DISTURBANCES} more")
        return table


def _row(rank: Rank) -> tuple[str, ...]:
    if not rank.steps:
        return ("0",)
    steps = MedianStep(rank.steps)
    return (
        str(rank.step_count),
        f"{1e9 / max(steps.wall_ns, 1):.1f}",
        decimal_bytes(rank.reduced_bytes),
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
