"""Runs for the tests of traces: records with chosen times, as ranks write them to their files."""

from pathlib import Path

import made_records
from made_records import MS_NS as MS
from made_records import START_NS as UNIX
from made_records import operations, write

from slackline.records import (
    SCHEMA_VERSION,
    ClockOffset,
    Decision,
    FileHeader,
    GroupOpened,
    LinkReport,
    PipelineStep,
    StepSummary,
)

MONO = 5_000_000_000
"""The monotonic clock of the hosts at the Unix time UNIX."""

ALL_REDUCE, BROADCAST, MESSAGE = 1, 4, 10
GROUP = 3801848804


def header(rank: int, *, clock: str = "boot", version: int = SCHEMA_VERSION) -> FileHeader:
    return made_records.header(rank, clock=clock, version=version, monotonic_ns=MONO)


def opened(rank: int, ranks: int = 2, epoch: int = GROUP) -> GroupOpened:
    members = tuple(range(ranks))
    return GroupOpened(rank=rank, time_ns=UNIX + 1, size=ranks, epoch=epoch, members=members)


def row(
    posted_ms: float,
    ended_ms: float,
    *,
    waited_ms: float = 0,
    sequence: int = 0,
    collective: int = ALL_REDUCE,
    receives: int = 0,
    peer: int = -1,
    tag: int = -1,
    failed: int = 0,
    nbytes: int = 4096,
    group: int = GROUP,
    plan: int | None = None,
) -> list[int]:
    """Return a row of operations; times are milliseconds after MONO."""
    number = plan if plan is not None else int(collective != MESSAGE)
    posted, ended = (MONO + round(each * MS) for each in (posted_ms, ended_ms))
    what = [collective, receives, peer, nbytes, 1, group, tag, sequence, 0, number, 1]
    return [*what, posted, posted + 1000, ended, round(waited_ms * MS), failed]


def step(rank: int, number: int, called_ms: float, wall_ms: float) -> StepSummary:
    """Return a step with 60 % backward, 30 % forward, and one group of gradients."""
    wall_ns = round(wall_ms * MS)
    return made_records.step(
        rank,
        number,
        time_ns=UNIX + round(called_ms * MS),
        wall_ns=wall_ns,
        exposed_ns=2 * MS,
        hidden_ns=MS,
        reduced_bytes=4096,
        forward_ns=wall_ns * 3 // 10,
        backward_ns=wall_ns * 6 // 10,
        groups=(12,),
        group_bytes=(4096,),
        group_posted_ns=(wall_ns // 2,),
        group_exposed_ns=(2 * MS,),
        group_late_ns=(0,),
        group_ended_ns=(wall_ns * 3 // 4,),
    )


def link(rank: int, peer: int, at_ms: float, sent_bytes: int) -> LinkReport:
    return made_records.link(
        rank,
        peer,
        MONO + round(at_ms * MS),
        sent_bytes=sent_bytes,
        received_bytes=2 * sent_bytes,
        queued_bytes=77,
    )


def pipeline(
    rank: int,
    spans: dict[str, tuple[float, float]],
    arrivals: dict[str, float] | None = None,
    number: int = 0,
) -> PipelineStep:
    """Return a pipeline step whose instructions and arrivals have these times in milliseconds."""
    came = arrivals or {}
    return PipelineStep(
        rank=rank,
        step=number,
        time_ns=UNIX,
        wall_ns=100 * MS,
        computing_ns=50 * MS,
        waiting_ns=50 * MS,
        plan="1f1b",
        policy="ready",
        tokens=tuple(spans),
        start_ns=tuple(round(start * MS) for start, _ in spans.values()),
        end_ns=tuple(round(end * MS) for _, end in spans.values()),
        senders=tuple(came),
        arrived_ns=tuple(round(at * MS) for at in came.values()),
        delays_ns=(MS,) * len(came),
    )


def clock_offset(rank: int, peer: int, offset_ms: float, error_ms: float) -> ClockOffset:
    return ClockOffset(
        rank=rank,
        peer=peer,
        at_ns=MONO,
        offset_ns=round(offset_ms * MS),
        error_ns=round(error_ms * MS),
    )


def write_everything(directory: Path) -> None:
    """Write a run of two ranks with records of every kind that a trace shows."""
    for rank in range(2):
        write(directory, rank, header(rank), opened(rank))
    write(directory, 0, step(0, 0, 100, 100), link(0, 1, 1000, 25_000_000))
    write(directory, 1, step(1, 0, 100, 100))
    early = [row(1, 9, waited_ms=7), row(10, 30, sequence=1), row(12, 25, sequence=2)]
    late = [row(6, 9), row(11, 30, sequence=1, waited_ms=2), row(12, 25, sequence=2)]
    write(directory, 0, operations(0, *early))
    write(directory, 1, operations(1, *late))
    write(directory, 0, pipeline(0, {"0F0": (0, 10), "0BW0": (45, 60)}, {"1BW0": 41}))
    write(directory, 1, pipeline(1, {"1F0": (15, 25), "1BW0": (25, 40)}, {"0F0": 12}))
    decision = Decision(rank=1, time_ns=UNIX + 3, subject="plan", choice="ring", reason="measured")
    write(directory, 1, decision)
