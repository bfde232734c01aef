"""Many steps as one run: a pure function."""

from collections.abc import Iterable

from slackline.telemetry._records import RunSummary, StepSummary

__all__ = ["summarize"]


def summarize(rank: int, steps: Iterable[StepSummary], rails: tuple[str, ...] = ()) -> RunSummary:
    """Adds up `steps`; those of other ranks are left out.

    Several optimizers run side by side: the wall time and the number of steps are those of the one
    that has spent the most time; exposed time and bytes are everybody's.
    """
    mine = [step for step in steps if step.rank == rank]
    walls: dict[int, int] = {}
    for step in mine:
        walls[step.optimizer] = walls.get(step.optimizer, 0) + step.wall_ns
    longest = max(walls, key=lambda optimizer: walls[optimizer], default=0)
    return RunSummary(
        rank=rank,
        steps=sum(step.optimizer == longest for step in mine),
        wall_ns=walls.get(longest, 0),
        exposed_ns=sum(step.exposed_ns for step in mine),
        reduced_bytes=sum(step.reduced_bytes for step in mine),
        rails=rails,
    )
