"""Telemetry of a small job with known values, as its ranks would have written it."""

from pathlib import Path

from slackline.telemetry import (
    SCHEMA_VERSION,
    Decision,
    FileHeader,
    GroupOpened,
    LinkReport,
    LinkVerdict,
    Operations,
    Record,
    StepSummary,
    encode,
    file_of,
)

START_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000


def write_records(directory: Path, rank: int, *records: Record) -> None:
    """Append records to the file of a rank."""
    with file_of(directory, rank).open("a") as file:
        file.writelines(f"{encode(record)}\n" for record in records)


def header(rank: int, *, host: str | None = None, start_ns: int = START_NS) -> FileHeader:
    """Return the first record of a rank whose monotonic clock began 100 s before the job."""
    return FileHeader(
        version=SCHEMA_VERSION,
        rank=rank,
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
    for rank in range(ranks):
        members = tuple(range(ranks))
        opened = GroupOpened(rank=rank, time_ns=start_ns, size=ranks, epoch=77, members=members)
        write_records(directory, rank, header(rank, start_ns=start_ns), opened)
        write_records(directory, rank, *(_step(rank, step, start_ns) for step in range(4)))
        rows = ",".join(_row(sequence) for sequence in range(2))
        write_records(directory, rank, Operations(rank=rank, lost=1, rows=rows))
        for peer in members:
            if peer != rank:
                slow = (rank, peer) == (0, 1)
                write_records(directory, rank, _report(rank, peer, slow=slow))
    reason = "link 0>1 is slow since 1.0 s: 31 ms over its usual 0.2 ms"
    verdict = LinkVerdict(
        rank=0,
        time_ns=start_ns + SECOND_NS,
        at_ns=SECOND_NS,
        since_ns=SECOND_NS,
        condition="slow",
        source=0,
        target=1,
        over_ns=31_000_000,
        reason=reason,
    )
    chosen = Decision(
        rank=0,
        time_ns=start_ns + 61 * SECOND_NS,
        subject="plan",
        choice="ring from 64KiB",
        reason="measured 1.2 ms",
    )
    write_records(directory, 0, verdict, chosen)


def _step(rank: int, number: int, start_ns: int) -> StepSummary:
    return StepSummary(
        rank=rank,
        step=number,
        time_ns=start_ns + 61 * SECOND_NS,
        wall_ns=20_000_000,
        exposed_ns=5_000_000,
        reduced_bytes=2000,
        parameters=2,
        waited=1,
        hidden_ns=3_000_000,
    )


def _row(sequence: int) -> str:
    posted_ns = 101 * SECOND_NS
    return (
        f"[1,0,-1,1000,1,77,-1,{sequence},0,1,1,{posted_ns},{posted_ns + 1},"
        f"{posted_ns + 2_000_000},500000,0]"
    )


def _report(rank: int, peer: int, *, slow: bool) -> LinkReport:
    return LinkReport(
        rank=rank,
        peer=peer,
        rail=0,
        kind="tcp",
        at_ns=161 * SECOND_NS,
        interval_ns=2 * SECOND_NS,
        sent_bytes=25_000_000,
        received_bytes=25_000_000,
        packets=100,
        resent=3,
        round_trip_ns=31_400_000 if slow else 400_000,
        queued_bytes=4096,
        unconfirmed_bytes=8192,
        state="up",
        outward=f"link {rank}>{peer} is well: 0.2 ms one way as usual",
        inward=f"link {peer}>{rank} is well: 0.2 ms one way as usual",
    )
