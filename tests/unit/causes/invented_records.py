"""Records of an invented job with one rank on each of several hosts."""

import made_records
from made_records import MS_NS as MS
from made_records import START_NS

from slackline.records import (
    Counters,
    FileHeader,
    GroupOpened,
    LinkVerdict,
    Operations,
    StepSummary,
)


def header(rank: int, host: str = "") -> FileHeader:
    return made_records.header(rank, host=host or f"node{rank}", clock=f"boot {host or rank}")


def opened(rank: int, size: int) -> GroupOpened:
    return GroupOpened(rank=rank, time_ns=START_NS, size=size, epoch=1, members=tuple(range(size)))


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
    """Return a change that the source, or `rank`, has found 300 ms after its beginning."""
    return made_records.verdict(
        source if rank is None else rank,
        source,
        target,
        after_ns,
        condition,
        since_ns=after_ns - 300 * MS,
        rail=rail,
        over_ns=over_ns if condition == "slow" else 0,
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
    run_ns: int | None = None,
    known: bool = True,
) -> StepSummary:
    """Return a step of a rank whose forwards wait `late_ns` for the previous step's gradients."""
    forward_ns = compute_ns // 3 + late_ns
    backward_ns = compute_ns - compute_ns // 3
    return made_records.step(
        rank,
        number,
        time_ns=START_NS + after_ns,
        wall_ns=forward_ns + backward_ns + pause_ns,
        exposed_ns=late_ns,
        forward_ns=forward_ns,
        backward_ns=backward_ns,
        groups=(0,),
        group_bytes=(1000,),
        group_posted_ns=(0,),
        group_exposed_ns=(0,),
        group_late_ns=(late_ns,),
        group_forward_exposed_ns=(late_ns,),
        run_ns=(compute_ns - delay_ns if run_ns is None else run_ns) if known else None,
        run_delay_ns=delay_ns if known else None,
    )


def operation(rank: int, after_ns: int, waited_ns: int, *, failed: int = 0) -> Operations:
    """Return the record of an all_reduce that ended at a time, for which a thread waited."""
    times = (after_ns - waited_ns - 2, after_ns - waited_ns - 1, after_ns, waited_ns)
    row = (1, 0, -1, 400, 9, 1, -1, 0, 0, 1, 1, *times, failed)
    return made_records.operations(rank, row)


def collective(rank: int, posted_ns: int, ended_ns: int, nbytes: int) -> Operations:
    """Return the record of an all_reduce for which no thread waits."""
    row = (1, 0, -1, nbytes, 9, 1, -1, 0, 0, 1, 1, posted_ns, posted_ns, ended_ns, 0, 0)
    return made_records.operations(rank, row)


def failed(rank: int, after_ns: int) -> Operations:
    return operation(rank, after_ns, 0, failed=1)


def counters(rank: int, after_ns: int) -> Counters:
    return Counters(rank=rank, time_ns=START_NS + after_ns, values={"sleeps": 1})
