"""The panels of the ranks' present pace, and of all step times since the beginning."""

from array import array
from collections import deque
from dataclasses import dataclass
from itertools import chain, zip_longest
from statistics import median, quantiles
from typing import Any

from slackline.causes import Watch
from slackline.history import Job, Rank, State, StepHistory, Steps
from slackline.records import DeviceReport
from slackline.views._summary import summary_of

__all__ = ["StepTimes", "overview", "states_of"]

_RECENT = 50
"""The number of latest steps whose median is a rank's present pace."""
_WINDOW = 8
"""The least number of steps of which quartiles and a share of waits are computed, if so many have
been taken."""
_SHOWN_RANKS = 64
"""The most ranks that the table of ranks lists."""


def overview(watch: Watch, now_ns: int) -> dict[str, Any]:
    """Return the run in ten lines, its state, and a row for each rank; times in milliseconds.

    `now_ns` is the Unix time. `state` is "ended" if all ranks have ended in good order, "gone" if
    all have ended and some without a final record, "removed" if the job's files are gone, "silent"
    if no rank has written for five seconds, and else "running". `seen_s` is the Unix time of the
    latest record, 0 without one.
    """
    job = watch.job
    states = states_of(watch, now_ns)
    ranks = [_row(rank, state) for rank, state in zip(job.ranks.values(), states[:-1], strict=True)]
    return {
        "directory": str(job.directory),
        "summary": [[line.name, line.text] for line in summary_of(watch)],
        "world": job.world_size,
        "state": states[-1],
        "seen_s": max((rank.seen_ns for rank in job.ranks.values()), default=0) / 1e9,
        "ranks": ranks[:_SHOWN_RANKS],
        "left_out": len(ranks[_SHOWN_RANKS:]),
    }


def states_of(watch: Watch, now_ns: int) -> tuple[str, ...]:
    """Return the states of the ranks at the Unix time `now_ns`, and at the end that of the job."""
    job = watch.job
    states = [rank.state(now_ns) for rank in job.ranks.values()]
    found = set(states)
    whole = "running"
    if states and len(states) == job.world_size and found <= {State.ENDED, State.GONE}:
        whole = "gone" if State.GONE in found else "ended"
    elif not job.directory.is_dir():
        whole = "removed"
    elif states and State.RUNNING not in found:
        whole = "silent"
    return *map(str, states), whole


@dataclass(frozen=True, slots=True)
class _Window:
    """An entry of a rank's history, with the latest eight steps or more up to its end."""

    entry: Steps
    share: float
    """The share of these steps in which the rank waited, from 0 to 1."""
    sample_ns: "array[int]"
    """Durations of these steps."""


class StepTimes:
    """The step times of a job's whole run, of which only the latest ones are computed anew."""

    def __init__(self) -> None:
        self._kind: tuple[object, ...] = ()
        self._rows: list[tuple[float, ...]] = []
        self._done = 0
        """The number of rows that cannot change any more: all ranks have gone further."""

    def panel(self, job: Job) -> dict[str, Any]:
        """Return the step times as columns of equal length.

        An entry sums up `width` steps: `time_s` is the Unix time of their end, and `longest_ms` the
        longest step of any rank. `median_ms` is the median duration of the steps of all ranks,
        `low_ms` and `high_ms` are the 25th and the 75th percentile, and `share` is the median over
        the ranks of the share of a step in which they waited for communication, from 0 to 1. These
        four are of the latest eight steps at least: a rare long step is then outside of the
        percentiles, and the waits for one step's communication may lie in the next step. A
        pipeline's ranks wait for other stages.
        """
        pipeline = not any(rank.step_count for rank in job.ranks.values())
        histories = [_history(rank, pipeline) for rank in job.ranks.values()]
        width = max((each.width for each in histories), default=1)
        if self._kind != (pipeline, width, len(histories)):
            self._kind, self._done = (pipeline, width, len(histories)), 0
        before = min(self._done, max(_WINDOW // width, 1) - 1)
        first = self._done - before
        entries = [each.by(width, first) for each in histories]
        windows = (_windows(each, width)[before:] for each in entries)
        fresh = [[each for each in row if each is not None] for row in zip_longest(*windows)]
        self._rows[self._done :] = [_row_of(row) for row in fresh]
        self._done = first + max(min(map(len, entries), default=0) - 1, before)
        names = ("time_s", "median_ms", "low_ms", "high_ms", "longest_ms", "share")
        columns = zip(*self._rows, strict=True) if self._rows else [()] * len(names)
        shown = {name: list(column) for name, column in zip(names, columns, strict=True)}
        return {"pipeline": pipeline, "width": width, **shown}


def _row_of(windows: list[_Window]) -> tuple[float, ...]:
    """Return the values of the columns for the entries of all ranks."""
    taken = list(chain.from_iterable(each.sample_ns for each in windows)) or [0]
    low_ns, middle_ns, high_ns = quantiles(
        taken * 2 if len(taken) == 1 else taken, n=4, method="inclusive"
    )
    return (
        max(each.entry.ended_ns for each in windows) / 1e9,
        middle_ns / 1e6,
        low_ns / 1e6,
        high_ns / 1e6,
        max(each.entry.longest_ns for each in windows) / 1e6,
        median(each.share for each in windows),
    )


def _windows(entries: list[Steps], width: int) -> list[_Window]:
    """Return the window of each entry."""
    latest: deque[Steps] = deque(maxlen=max(_WINDOW // width, 1))
    found = []
    for entry in entries:
        latest.append(entry)
        wall_ns = sum(each.wall_ns for each in latest)
        exposed_ns = sum(each.exposed_ns for each in latest)
        sample_ns = array("q", chain.from_iterable(each.sample_ns for each in latest))
        found.append(_Window(entry, _share(exposed_ns, wall_ns), sample_ns))
    return found


def _share(waited_ns: float, wall_ns: float) -> float:
    """Return the share of a time in which a rank waited, from 0 to 1.

    The waits for the communication of the last of these steps may lie after their end.
    """
    return min(waited_ns / wall_ns, 1.0) if wall_ns else 0.0


def _history(rank: Rank, pipeline: bool) -> StepHistory:
    return rank.pipeline_history if pipeline else rank.history


def _row(rank: Rank, state: str) -> dict[str, Any]:
    wall_ns, waited_ns, label = _pace(rank)
    return {
        "rank": rank.number,
        "host": "" if rank.header is None else rank.header.host,
        "process": None if rank.header is None else rank.header.process,
        "state": state,
        "restarts": max(rank.processes - 1, 0),
        "steps": rank.step_count or rank.pipeline_count,
        "step_ms": wall_ns / 1e6,
        "waits_for": label,
        "exposed_ms": waited_ns / 1e6,
        "share": _share(waited_ns, wall_ns),
        "operations": sum(each.count for each in rank.totals.values()),
        "failed": sum(each.failed for each in rank.totals.values()),
        "lost": rank.lost,
        "device": "" if rank.device is None else _device(rank.device),
    }


def _device(report: DeviceReport) -> str:
    return f"{report.device}: {report.sentence}" if report.sentence else report.device


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
