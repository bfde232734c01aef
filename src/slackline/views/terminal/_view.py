"""A job's state at one moment, as data: for the screen and for JSON."""

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from slackline.causes import Spell, Watch
from slackline.history import Direction, Finding, OperationTotals, Rank, State
from slackline.records import Decision, DeviceReport

__all__ = ["RankView", "View", "view_of"]

_RECENT = 50
"""The number of latest pipeline steps whose median is a rank's present pace."""


@dataclass(frozen=True, kw_only=True)
class RankView:
    """The state of one rank."""

    rank: int
    """The rank in the job."""
    host: str
    """The name of the rank's host; empty before the first record of its process."""
    process: int
    """The process id; 0 before the first record."""
    processes: int
    """The number of processes that have written for this rank: 2 after one restart."""
    state: State
    """The rank's state."""
    seen_ns: int
    """The Unix time of the latest record that states a time; 0 before the first."""
    quiet_ns: int
    """The time since the latest record."""
    step: int
    """The number of steps of the optimizer or, in a pipeline, of the schedule."""
    steps_per_second: float
    """The inverse of the median duration of the latest steps; 0 without a step."""
    exposed_ns: int
    """The time of the median step in which the training thread waited for communication."""
    exposed_share: float
    """The same time as a part of the median step, from 0 to 1."""
    operations: Mapping[str, OperationTotals]
    """Sums over the operations of the program, by kind."""
    device: DeviceReport | None
    """The latest report about the device that adds for the rank; None without a device."""


@dataclass(frozen=True, kw_only=True)
class View:
    """The state of a job."""

    directory: str
    """The directory with the ranks' files."""
    time_ns: int
    """The Unix time of the view."""
    begun_ns: int
    """The Unix time at which the first process began to write; 0 before its first record."""
    world_size: int
    """The number of ranks in the job."""
    ranks: tuple[RankView, ...]
    """The ranks that have written, in rising order."""
    links: tuple[Direction, ...]
    """Both directions of each TCP or UDP rail with reports, the most disturbed ones first."""
    causes: tuple[Spell, ...]
    """The causes of slow steps that hold or have held, the newest first."""
    findings: tuple[Finding, ...]
    """The latest findings about links and ranks that no cause explains, the newest first."""
    decisions: tuple[Decision, ...]
    """The latest decisions of all ranks, the newest first."""
    problems: tuple[str, ...]
    """Sentences about telemetry that is missing or could not be read, the newest first."""

    def as_json(self) -> dict[str, Any]:
        """Return the view as objects, lists, texts and numbers of JSON."""
        causes = [each.as_json() for each in self.causes]
        return {**asdict(replace(self, causes=())), "causes": causes}


def view_of(watch: Watch, now_ns: int) -> View:
    """Return the state of a job at the Unix time `now_ns`, from the records read so far."""
    job = watch.job
    named = [each for each in watch.spells if not each.cause.told_by_verdicts]
    return View(
        directory=str(job.directory),
        time_ns=now_ns,
        begun_ns=job.begun_ns,
        world_size=job.world_size,
        ranks=tuple(_rank_view(rank, now_ns) for rank in job.ranks.values()),
        links=tuple(job.directions()),
        causes=tuple(reversed(named)),
        findings=tuple(
            finding
            for finding in reversed(job.findings)
            if not any(each.explains(finding) for each in named)
        ),
        decisions=tuple(sorted(job.decisions, key=lambda each: -each.time_ns)),
        problems=tuple(reversed(job.problems)),
    )


def _rank_view(rank: Rank, now_ns: int) -> RankView:
    step, steps_per_second, exposed_ns, share = _steps(rank)
    return RankView(
        rank=rank.number,
        host="" if rank.header is None else rank.header.host,
        process=0 if rank.header is None else rank.header.process,
        processes=rank.processes,
        state=rank.state(now_ns),
        seen_ns=rank.seen_ns,
        quiet_ns=max(now_ns - rank.seen_ns, 0),
        step=step,
        steps_per_second=steps_per_second,
        exposed_ns=exposed_ns,
        exposed_share=share,
        operations=rank.totals,
        device=rank.device,
    )


def _steps(rank: Rank) -> tuple[int, float, int, float]:
    """Return the number of steps, the steps a second, the exposed time and its share of a step."""
    if rank.steps or not rank.pipeline:
        median = rank.median_step()
        return rank.step_count, median.steps_per_second, round(median.exposed_ns), median.share
    recent = list(rank.pipeline)[-_RECENT:]
    wall_ns = statistics.median(step.wall_ns for step in recent)
    waiting_ns = statistics.median(step.waiting_ns for step in recent)
    share = waiting_ns / max(wall_ns, 1)
    return rank.pipeline_count, 1e9 / max(wall_ns, 1), round(waiting_ns), share
