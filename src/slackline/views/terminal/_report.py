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

from slackline.causes import Watch
from slackline.history import Finding, Job, Rank
from slackline.records import MedianStep
from slackline.units import count, show_bytes, show_number, show_percent, show_time
from slackline.views._summary import summary_of
from slackline.views.terminal._pipeline_steps import pace, pipeline_table

__all__ = ["Report"]

_RECENT = 50
"""The number of recent steps that the progress line covers."""

_HELD_NS = 2_000_000_000
"""The time for which a message about a link is held back: the cause that explains the messages
about several links, such as a NIC, is named about a second after the first of them. The first
message about a cut is told at once."""

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
        self.watch = Watch(self.job)
        """The job with the causes that were named in it."""
        self._unix = unix
        self._held: list[Finding] = []
        """The messages about links that a cause may yet explain."""
        self._cut_ns = -_HELD_NS
        """The Unix time of the latest cut that was told at once."""

    @property
    def ranks(self) -> list[Rank]:
        """The ranks in rising order; a rank that has written nothing is empty."""
        known = self.job.ranks
        return [known[number] if number in known else Rank(number) for number in self._numbers]

    def update(self) -> None:
        """Read the records that the ranks have added since the last call."""
        self.watch.update(self._unix())

    def opened(self) -> list[int]:
        """Return the ranks that have opened a group of slackline."""
        return [rank.number for rank in self.ranks if rank.groups]

    def news(self, *, ended: bool = False) -> list[str]:
        """Return new messages about links and ranks, and new causes of slow steps, one line each.

        `ended` also returns messages that would otherwise be held back for a while.
        """
        if ended:
            self.job.finish()
        told = self._unexplained(ended=ended)
        # The messages about a single link are those about its cause and about its end already.
        causes = self.watch.take_named()
        told += [f"cause: {each.sentence}" for each in causes if not each.told_by_verdicts]
        over = self.watch.take_ended()
        return told + [f"over: {each.ending}" for each in over if not each.cause.told_by_verdicts]

    def _unexplained(self, *, ended: bool) -> list[str]:
        """Return the messages that no named cause explains, once they have waited for one."""
        found = [*self._held, *self.job.findings]
        self.job.findings.clear()
        self._held.clear()
        spells = [each for each in self.watch.spells if not each.cause.told_by_verdicts]
        told = []
        for finding in found:
            if any(each.explains(finding) for each in spells if not each.explained_by):
                continue
            now_ns = self._unix()
            first_cut = finding.broken and finding.time_ns - self._cut_ns >= _HELD_NS
            if first_cut:
                self._cut_ns = finding.time_ns
            waited = ended or now_ns - finding.time_ns >= _HELD_NS
            if finding.link is None or first_cut or waited:
                told.append(finding.sentence)
            else:
                self._held.append(finding)
        return told

    def progress(self) -> str:
        """Return the job's progress as one line."""
        elapsed = timedelta(seconds=round(monotonic() - self._start_s))
        ranks = self.ranks
        head = f"{count(len(ranks), 'rank')}, {elapsed}"
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
            f"{head}: step {steps}, {show_number(1e9 / max(wall_ns, 1))} steps/s, "
            f"{show_time(exposed_ns)} exposed a step ({_share(exposed_ns, wall_ns)})"
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

    def summary(self) -> Table:
        """Return the run in ten lines, as `slackline why` and the page show it."""
        table = Table(show_header=False, title="the run", title_justify="left")
        table.add_column("fact", no_wrap=True)
        table.add_column("value", overflow="fold")
        for line in summary_of(self.watch):
            table.add_row(line.name, line.text)
        return table


def _row(rank: Rank) -> tuple[str, ...]:
    if not rank.steps:
        return ("0",)
    steps = MedianStep(rank.steps)
    return (
        str(rank.step_count),
        show_number(1e9 / max(steps.wall_ns, 1)),
        show_bytes(rank.reduced_bytes),
        show_time(steps.exposed_ns),
        _share(steps.exposed_ns, steps.wall_ns),
        "+".join(rank.rails) or "-",
    )


def _share(part_ns: float, whole_ns: float) -> str:
    return show_percent(part_ns / max(whole_ns, 1))
