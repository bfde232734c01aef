"""Records of an invented job with one rank on each of several hosts."""

import json

from slackline.telemetry import (
    SCHEMA_VERSION,
    Counters,
    FileHeader,
    GroupOpened,
    LinkReport,
    LinkVerdict,
    Operations,
    StepSummary,
)

MS = 1_000_000
S = 1_000_000_000
START_NS = 1_700_000_000 * S


def header(rank: int, host: str = "") -> FileHeader:
    return FileHeader(
        version=SCHEMA_VERSION,
        rank=rank,
        time_ns=START_NS,
        monotonic_ns=0,
        host=host or f"node{rank}",
        clock=f"boot {host or rank}",
        process=100 + rank,
    )


def opened(rank: int, size: int) -> GroupOpened:
    return GroupOpened(rank=rank, time_ns=START_NS, size=size, epoch=1, members=tuple(range(size)))


def link(rank: int, peer: int, at_ns: int, rail: int = 0) -> LinkReport:
    return LinkReport(
        rank=rank,
        peer=peer,
        rail=rail,
        kind="tcp",
        at_ns=at_ns,
        interval_ns=S,
        sent_bytes=25_000_000,
        received_bytes=12_500_000,
        packets=0,
        resent=0,
        round_trip_ns=200_000,
        queued_bytes=0,
        unconfirmed_bytes=0,
        state="up",
        outward="",
        inward="",
    )


def verdict(
    source: int,
    target: int,
    after_ns: int,
    condition: str = "slow",
    *,
    rail: int = 0,
    rank: int | None = None,
    over_ns: int = 30 * MS,
) -> LinkVerdict:
    return LinkVerdict(
        rank=source if rank is None else rank,
        time_ns=START_NS + after_ns,
        at_ns=after_ns,
        since_ns=after_ns - 300 * MS,
        condition=condition,
        source=source,
        target=target,
        rail=rail,
        over_ns=over_ns if condition == "slow" else 0,
        reason=f"link {source}>{target} is {condition}",
    )


def step(
    rank: int,
    number: int,
    after_ns: int,
    *,
    compute_ns: int = 100 * MS,
    pause_ns: int = 5 * MS,
    late_ns: int = 20 * MS,
    delay_ns: int = 0,
) -> StepSummary:
    """Return a step of a rank whose forwards wait `late_ns` for the previous step's gradients."""
    forward_ns = compute_ns // 3 + late_ns
    backward_ns = compute_ns - compute_ns // 3
    return StepSummary(
        rank=rank,
        step=number,
        time_ns=START_NS + after_ns,
        wall_ns=forward_ns + backward_ns + pause_ns,
        exposed_ns=late_ns,
        reduced_bytes=1000,
        parameters=2,
        waited=1,
        forward_ns=forward_ns,
        backward_ns=backward_ns,
        groups=(0,),
        group_bytes=(1000,),
        group_posted_ns=(0,),
        group_exposed_ns=(0,),
        group_late_ns=(late_ns,),
        group_forward_exposed_ns=(late_ns,),
        run_delay_ns=delay_ns,
    )


def operation(rank: int, after_ns: int, waited_ns: int, *, failed: int = 0) -> Operations:
    """Return the record of an all_reduce that ended at a time, for which a thread waited."""
    times = [after_ns - waited_ns - 2, after_ns - waited_ns - 1, after_ns, waited_ns]
    row = [1, 0, -1, 400, 9, 1, -1, 0, 0, 1, 1, *times, failed]
    return Operations(rank=rank, lost=0, rows=json.dumps(row, separators=(",", ":")))


def failed(rank: int, after_ns: int) -> Operations:
    return operation(rank, after_ns, 0, failed=1)


def counters(rank: int, after_ns: int) -> Counters:
    return Counters(rank=rank, time_ns=START_NS + after_ns, values={"sleeps": 1})
