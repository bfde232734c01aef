"""The panel of the latest steps: the operations of all ranks, their waits, and computation."""

from collections.abc import Iterable, Iterator
from typing import Any

from slackline.history import Job, Rank
from slackline.records import Operation

__all__ = ["timeline"]

_STEPS = 3
"""The number of latest steps that the timeline covers."""
_WITHOUT_STEPS_NS = 1_000_000_000
"""The length of the timeline if no rank reports steps."""
_MOST_RANKS = 32
_MOST_OPERATIONS = 200
"""The most operations of one rank; the shortest ones are left out."""
_MOST_LANES = 4
"""The most lanes for operations of one rank that overlap; further ones share the last lane."""

Span = tuple[int, int]
"""The beginning and the end of a time, common Unix time in nanoseconds."""


def timeline(job: Job) -> dict[str, Any]:
    """Return the latest steps of all ranks; times are milliseconds since the beginning.

    Each operation is [lane, beginning, end, kind, bytes, plan, failed] and each wait [beginning,
    end]. `waiting` is the share of the time in which a rank's threads waited for operations, from
    0 to 1. A rank whose clock cannot be compared is in `apart`. `plain` is whether ranks may wait
    where the engine does not see it, as in DDP: then only the exposed time of a step has all waits.
    """
    if not job.ranks:
        return {
            "length_ms": 0,
            "begin_s": None,
            "ranks": [],
            "left_out": 0,
            "apart": [],
            "plain": False,
        }
    begin, end = _window(job)
    shown = list(job.ranks.values())[:_MOST_RANKS]
    return {
        "length_ms": (end - begin) / 1e6,
        "begin_s": begin / 1e9,
        "ranks": [_row(rank, (begin, end)) for rank in shown],
        "left_out": len(job.ranks) - len(shown),
        "apart": job.apart,
        "plain": any(rank.steps[-1].plain for rank in shown if rank.steps),
    }


def _row(rank: Rank, window: Span) -> dict[str, Any]:
    begin, end = window
    found = [
        (rank.unix_ns(each.posted_ns), rank.unix_ns(each.ended_ns), each)
        for each in _since(rank, begin)
    ]
    inside = [each for each in found if each[1] >= begin and each[0] <= end]
    kept = sorted(inside, key=lambda each: each[0] - each[1])[:_MOST_OPERATIONS]
    kept.sort(key=lambda each: each[:2])
    waits = _union(
        (max(ended - each.waited_ns, begin), min(ended, end))
        for _, ended, each in inside
        if each.waited_ns
    )
    waited_ns = sum(until - since for since, until in waits)
    lanes = _lanes([(posted, ended) for posted, ended, _ in kept])
    return {
        "rank": rank.number,
        "operations": [
            [
                lane,
                *_within((posted, ended), window),
                each.kind,
                each.bytes,
                each.plan_name,
                bool(each.failed),
            ]
            for lane, (posted, ended, each) in zip(lanes, kept, strict=True)
        ],
        "waits": [list(_within(span, window)) for span in waits],
        "steps": [
            [*_within(span, window), number]
            for span, number in _steps(rank)
            if span[1] > begin and span[0] < end
        ],
        "waiting": waited_ns / (end - begin) if end > begin else 0.0,
        "left_out": len(inside) - len(kept),
    }


def _window(job: Job) -> Span:
    """Return the time of the latest steps of the lowest rank that takes steps.

    Records of operations follow those of steps by up to a quarter of a second; steps whose
    operations may still be missing are left out if earlier ones are there. Without steps the window
    is the second before the latest operation.
    """
    for rank in job.ranks.values():
        steps = list(_steps(rank))
        if not steps:
            continue
        operated_ns = _latest_end(rank)
        whole = [span for span, _ in steps if operated_ns is None or span[1] <= operated_ns]
        chosen = (whole or [span for span, _ in steps])[-_STEPS:]
        return chosen[0][0], chosen[-1][1]
    ends = [end for rank in job.ranks.values() if (end := _latest_end(rank)) is not None]
    end = max(ends, default=0)
    return (end - _WITHOUT_STEPS_NS if ends else 0), end


def _steps(rank: Rank) -> Iterator[tuple[Span, int]]:
    """Yield the kept steps of a rank, with their numbers."""
    for step in list(rank.steps)[-8 * _STEPS :]:
        if step.optimizer == 0:
            yield (step.time_ns - step.wall_ns, step.time_ns), step.step
    if not rank.steps:
        for each in list(rank.pipeline)[-8 * _STEPS :]:
            yield (each.time_ns, each.time_ns + each.wall_ns), each.step


def _latest_end(rank: Rank) -> int | None:
    """Return the end of the program's latest operation; None if no operation is known."""
    for batch in reversed(rank.operations):
        ends = [each.ended_ns for each in batch.rows if not each.internal]
        if ends:
            return rank.unix_ns(max(ends))
    return None


def _since(rank: Rank, begin: int) -> Iterator[Operation]:
    """Yield the program's operations of the batches that may have some after `begin`."""
    for batch in reversed(rank.operations):
        yield from (each for each in batch.rows if not each.internal)
        if batch.rows and rank.unix_ns(batch.rows[0].ended_ns) < begin:
            return


def _union(spans: Iterable[Span]) -> list[Span]:
    """Return the times that at least one of the spans covers, in order, without overlaps."""
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if end <= begin:
            continue
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged


def _lanes(spans: Iterable[Span]) -> list[int]:
    """Return a lane for each span, in the order of their beginnings: the lowest one that is free.

    If all lanes are in use, the last lane is returned.
    """
    free_from: list[int] = []
    lanes = []
    for begin, end in spans:
        free = (lane for lane, until in enumerate(free_from) if until <= begin)
        lane = min(next(free, len(free_from)), _MOST_LANES - 1)
        if lane == len(free_from):
            free_from.append(end)
        free_from[lane] = max(free_from[lane], end)
        lanes.append(lane)
    return lanes


def _within(span: Span, window: Span) -> tuple[float, float]:
    """Return a span in milliseconds since the window's beginning, cut at the window's ends."""
    begin, end = (min(max(each, window[0]), window[1]) - window[0] for each in span)
    return begin / 1e6, end / 1e6
