"""Pipeline telemetry of a job: a progress line while the job runs, a table at its end."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.table import Table

from slackline.telemetry import PipelineStep

__all__ = ["PipelineTimes", "pace", "pipeline_table", "times_of"]


@dataclass(frozen=True, slots=True)
class PipelineTimes:
    """The figures of one rank's pipeline step that the progress line and the table need."""

    wall_ns: int
    computing_ns: int
    waiting_ns: int
    plan: str
    changed: bool


def times_of(step: PipelineStep) -> PipelineTimes:
    """Return the figures of a pipeline step that the progress line and the table show."""
    return PipelineTimes(
        step.wall_ns, step.computing_ns, step.waiting_ns, step.plan, bool(step.change)
    )


def pace(recent: Iterable[PipelineTimes]) -> str:
    """Format the median step among `recent` for the progress line."""
    wall_ns, _, waiting_ns = _median(list(recent))
    return (
        f"{1e9 / max(wall_ns, 1):.1f} steps/s, "
        f"{waiting_ns / 1e6:.2f} ms waiting a step ({waiting_ns / max(wall_ns, 1):.1%})"
    )


def pipeline_table(ranks: Sequence[Sequence[PipelineTimes]], first: int = 0) -> Table | None:
    """Return a table with a row for each rank, from number `first` on.

    Returns None if no rank was part of a pipeline.
    """
    if not any(ranks):
        return None
    table = Table(caption="of the median step; waiting: nothing that the plan allows was ready")
    for column in (
        "rank",
        "steps",
        "ms a step",
        "computing",
        "waiting",
        "share",
        "changed",
        "plan",
    ):
        table.add_column(column, justify="left" if column == "plan" else "right")
    for number, steps in enumerate(ranks, first):
        if not steps:
            table.add_row(str(number), "0")
            continue
        wall_ns, computing_ns, waiting_ns = _median(steps)
        table.add_row(
            str(number),
            str(len(steps)),
            f"{wall_ns / 1e6:.1f}",
            f"{computing_ns / 1e6:.1f} ms",
            f"{waiting_ns / 1e6:.1f} ms",
            f"{waiting_ns / max(wall_ns, 1):.1%}",
            str(sum(step.changed for step in steps)),
            steps[-1].plan,
        )
    return table


def _median(steps: Sequence[PipelineTimes]) -> tuple[float, float, float]:
    """Return the medians of wall, computing and waiting time over the steps, in nanoseconds.

    Each of the three medians may belong to another step.
    """
    return (
        statistics.median(step.wall_ns for step in steps),
        statistics.median(step.computing_ns for step in steps),
        statistics.median(step.waiting_ns for step in steps),
    )
