"""Telemetry of a small job with known values, as its ranks would have written it."""

from pathlib import Path

import made_records
from made_records import SECOND_NS, START_NS, write

from slackline.records import Decision, FileHeader, GroupOpened, LinkReport, StepSummary


def header(rank: int, *, host: str | None = None, start_ns: int = START_NS) -> FileHeader:
    """Return the first record of a rank whose monotonic clock began 100 s before the job."""
    return made_records.header(
        rank,
        time_ns=start_ns,
        monotonic_ns=100 * SECOND_NS,
        host=f"host{rank}" if host is None else host,
        clock=f"clock{rank}",
        process=1000 + rank,
    )


def write_job(directory: Path, ranks: int = 3, start_ns: int = START_NS) -> None:
    """Write a job whose link 0>1 is slow.

    Each rank takes 4 steps of 20 ms, 5 ms of them exposed, sums 1000 bytes in each of two
    all_reduces, and sends 25 MB in 2 s to each other rank.
    """
    reason = "link 0>1 is slow since 1.0 s: 31 ms over its usual 200 us"
    changes = {"time_ns": start_ns + SECOND_NS, "over_ns": 31_000_000, "reason": reason}
    slow_link = made_records.verdict(0, 0, 1, SECOND_NS, "slow", **changes)
    for rank in range(ranks):
        members = tuple(range(ranks))
        opened = GroupOpened(rank=rank, time_ns=start_ns, size=ranks, epoch=77, members=members)
        write(directory, rank, header(rank, start_ns=start_ns), opened)
        if rank == 0:
            write(directory, rank, slow_link)
        write(directory, rank, *(_step(rank, step, start_ns) for step in range(4)))
        write(directory, rank, made_records.operations(rank, _row(0), _row(1), lost=1))
        for peer in members:
            if peer != rank:
                slow = (rank, peer) == (0, 1)
                write(directory, rank, _report(rank, peer, slow=slow))
    chosen = Decision(
        rank=0,
        time_ns=start_ns + 61 * SECOND_NS,
        subject="plan",
        choice="ring from 64KiB",
        reason="measured 1.2 ms",
    )
    write(directory, 0, chosen)


def _step(rank: int, number: int, start_ns: int) -> StepSummary:
    return made_records.step(
        rank,
        number,
        time_ns=start_ns + 61 * SECOND_NS,
        reduced_bytes=2000,
        hidden_ns=3_000_000,
    )


def _row(sequence: int) -> tuple[int, ...]:
    posted_ns = 101 * SECOND_NS
    times = (posted_ns, posted_ns + 1, posted_ns + 2_000_000, 500_000)
    return (1, 0, -1, 1000, 1, 77, -1, sequence, 0, 1, 1, *times, 0)


def _report(rank: int, peer: int, *, slow: bool) -> LinkReport:
    return made_records.link(
        rank,
        peer,
        161 * SECOND_NS,
        interval_ns=2 * SECOND_NS,
        received_bytes=25_000_000,
        packets=100,
        resent=3,
        round_trip_ns=31_400_000 if slow else 400_000,
        queued_bytes=4096,
        unconfirmed_bytes=8192,
        outward=f"link {rank}>{peer} is well: 200 us one way as usual",
        inward=f"link {peer}>{rank} is well: 200 us one way as usual",
    )
