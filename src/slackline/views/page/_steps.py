"""The panels of the ranks' present pace, and of all step times since the beginning."""

from collections import deque
from itertools import zip_longest
from statistics import median
from typing import Any

from slackline.causes import Watch
from slackline.history import Job, Rank, StepHistory, Steps
from slackline.views._summary import summary_of

__all__ = ["StepTimes", "overview"]

_RECENT = 50
"""The number of latest steps whose median is a rank's present pace."""
_SHARED_STEPS = 8
"""The least number of steps of which a share of waits is computed, if so many have been taken."""
_SHOWN_RANKS = 64
"""The most ranks that the table of ranks lists."""


def overview(watch: Watch) -> dict[str, Any]:
    """Return the run in ten lines, its state, and a row for each rank; times in milliseconds."""
    job = watch.job
    ranks = [_row(rank) for rank in job.ranks.values()]
    ended = [rank.counters is not None for rank in job.ranks.values()]
    return {
        "directory": str(job.directory),
        "summary": [[line.name, line.text] for line in summary_of(watch)],
        "world": job.world_size,
        "ended": bool(ended) and len(ended) == job.world_size and all(ended),
        "ranks": ranks[:_SHOWN_RANKS],
        "left_out": len(ranks[_SHOWN_RANKS:]),
    }


class StepTimes:
    """The step times of a job's whole run, of which only the latest ones are computed anew."""

    def __init__(self) -> None:
        self._kind: tuple[object, ...] = ()
        self._rows: list[tuple[float, float, float, float]] = []
        self._done = 0
        """The number of rows that cannot change any more: all ranks have gone further."""

    def panel(self, job: Job) -> dict[str, Any]:
        """Return the step times as columns of equal length.

        An entry sums up `width` steps: `time_s` is the Unix time of their end, `median_ms` the
        median over the ranks of their mean duration, and `longest_ms` the longest step of any rank.
        `share` is the median over the ranks of the share of communication for which they waited,
        from 0 to 1. The share is that of at least eight steps, since the waits for one step's
        communication may lie in the next step. A pipeline's ranks wait for other stages.
        """
        pipeline = not any(rank.step_count for rank in job.ranks.values())
        histories = [_history(rank, pipeline) for rank in job.ranks.values()]
        width = max((each.width for each in histories), default=1)
        if self._kind != (pipeline, width, len(histories)):
            self._kind, self._done = (pipeline, width, len(histories)), 0
        before = min(self._done, max(_SHARED_STEPS // width, 1) - 1)
        first = self._done - before
        entries = [each.by(width, first) for each in histories]
        shared = (_with_shares(each, width)[before:] for each in entries)
        fresh = [[each for each in row if each is not None] for row in zip_longest(*shared)]
        self._rows[self._done :] = [_row_of(row) for row in fresh]
        self._done = first + max(min(map(len, entries), default=0) - 1, before)
        names = ("time_s", "median_ms", "longest_ms", "share")
        columns = zip(*self._rows, strict=True) if self._rows else [()] * len(names)
        shown = {name: list(column) for name, column in zip(names, columns, strict=True)}
        return {"pipeline": pipeline, "width": width, **shown}


def _row_of(entries: list[tuple[Steps, float]]) -> tuple[float, float, float, float]:
    """Return the values of the columns for the entries of all ranks."""
    return (
        max(entry.ended_ns for entry, _ in entries) / 1e9,
        median(_mean_ns(entry) for entry, _ in entries) / 1e6,
        max(entry.longest_ns for entry, _ in entries) / 1e6,
        median(share for _, share in entries),
    )


def _with_shares(entries: list[Steps], width: int) -> list[tuple[Steps, float]]:
    """Return each entry with the share of waits in the entry and in those shortly before it."""
    latest: deque[Steps] = deque(maxlen=max(_SHARED_STEPS // width, 1))
    found = []
    for entry in entries:
        latest.append(entry)
        wall_ns = sum(each.wall_ns for each in latest)
        exposed_ns = sum(each.exposed_ns for each in latest)
        found.append((entry, exposed_ns / max(wall_ns, 1)))
    return found


def _history(rank: Rank, pipeline: bool) -> StepHistory:
    return rank.pipeline_history if pipeline else rank.history


def _mean_ns(entry: Steps) -> float:
    return entry.wall_ns / max(entry.count, 1)


def _row(rank: Rank) -> dict[str, Any]:
    wall_ns, waited_ns, label = _pace(rank)
    return {
        "rank": rank.number,
        "host": "" if rank.header is None else rank.header.host,
        "process": None if rank.header is None else rank.header.process,
        "restarts": max(rank.processes - 1, 0),
        "steps": rank.step_count or rank.pipeline_count,
        "step_ms": wall_ns / 1e6,
        "waits_for": label,
        "share": waited_ns / wall_ns if wall_ns else 0.0,
        "operations": sum(each.count for each in rank.totals.values()),
        "failed": sum(each.failed for each in rank.totals.values()),
        "lost": rank.lost,
    }


def _pace(rank: Rank) -> tuple[float, float, str]:
    """Return the medians of a step's duration and of its wait, in ns, and the cause of the wait."""
    if rank.steps:
        step = rank.median_step()
        return step.wall_ns, step.exposed_ns, "communication"
    recent = list(rank.pipeline)[-_RECENT:]
    if not recent:
        return 0.0, 0.0, ""
    wall_ns = median(step.wall_ns for step in recent)
    return wall_ns, median(step.waiting_ns for step in recent), "other stages"
