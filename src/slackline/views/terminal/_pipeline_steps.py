"""Pipeline telemetry of a job: a progress line while the job runs, a table at its end."""

import statistics
from collections.abc import Iterable, Sequence

from rich.table import Table

from slackline.history import Rank
from slackline.records import PipelineStep
from slackline.units import show_number, show_percent, show_time

__all__ = ["pace", "pipeline_table"]


def pace(recent: Iterable[PipelineStep]) -> str:
    """Format the median step among `recent` for the progress line."""
    wall_ns, _, waiting_ns = _median(list(recent))
    return (
        f"{show_number(1e9 / max(wall_ns, 1))} steps/s, "
        f"{show_time(waiting_ns)} waiting a step ({show_percent(waiting_ns / max(wall_ns, 1))})"
    )


def pipeline_table(ranks: Sequence[Rank]) -> Table | None:
    """Return a table with a row for each rank; None if no rank was part of a pipeline."""
    if not any(rank.pipeline for rank in ranks):
        return None
    table = Table(caption="of the median step; waiting: nothing that the plan allows was ready")
    for column in (
        "rank",
        "steps",
        "step time",
        "computing",
        "waiting",
        "share",
        "changed",
        "plan",
    ):
        table.add_column(column, justify="left" if column == "plan" else "right")
    for rank in ranks:
        if not rank.pipeline:
            table.add_row(str(rank.number), "0")
            continue
        wall_ns, computing_ns, waiting_ns = _median(rank.pipeline)
        table.add_row(
            str(rank.number),
            str(rank.pipeline_count),
            show_time(wall_ns),
            show_time(computing_ns),
            show_time(waiting_ns),
            show_percent(waiting_ns / max(wall_ns, 1)),
            str(rank.plan_changes),
            rank.pipeline[-1].plan,
        )
    return table


def _median(steps: Sequence[PipelineStep]) -> tuple[float, float, float]:
    """Return the medians of wall, computing and waiting time over the steps, in nanoseconds.

    Each of the three medians may belong to another step.
    """
    return (
        statistics.median(step.wall_ns for step in steps),
        statistics.median(step.computing_ns for step in steps),
        statistics.median(step.waiting_ns for step in steps),
    )
