"""Records of a job with known figures."""

from pathlib import Path
from typing import Any

import made_records
import pytest
from made_records import MS_NS, SECOND_NS, START_NS, header, write

from slackline.history import Job
from slackline.records import (
    Counters,
    GroupOpened,
    LinkReport,
    LinkVerdict,
    Operations,
    PipelineStep,
    Record,
    StepSummary,
)

ALL_REDUCE, DIRECT = 1, 1


def step(rank: int, number: int, *, wall_ms: int = 100, exposed_ms: int = 25) -> StepSummary:
    """Return step `number`; steps of 100 ms end at 100 ms, 200 ms and so on."""
    return made_records.step(
        rank,
        number,
        time_ns=START_NS + (number + 1) * 100 * MS_NS,
        wall_ns=wall_ms * MS_NS,
        exposed_ns=exposed_ms * MS_NS,
    )


def operations(rank: int, *rows: tuple[int, int, int]) -> Operations:
    """Return all_reduces of 4096 bytes by the plan "direct": (posted, ended, waited) in ms."""
    whole = []
    for posted, ended, waited in rows:
        times = (posted * MS_NS, posted * MS_NS, ended * MS_NS, waited * MS_NS)
        whole.append((ALL_REDUCE, 0, -1, 4096, 1, 1, -1, 0, 0, DIRECT, 1, *times, 0))
    return made_records.operations(rank, *whole)


def report(
    rank: int, peer: int, at_s: int, *, rail: int = 0, packets: int = 0, resent: int = 0
) -> LinkReport:
    """Return a second in which `rank` has sent 100 Mbit and received 50 Mbit."""
    return made_records.link(
        rank,
        peer,
        at_s * SECOND_NS,
        rail=rail,
        kind="udp" if packets else "tcp",
        sent_bytes=12_500_000,
        received_bytes=6_250_000,
        packets=packets,
        resent=resent,
        round_trip_ns=400_000,
        outward=f"link {rank}>{peer} is well: 200 us one way as usual",
        inward=f"link {peer}>{rank} is well: 200 us one way as usual",
    )


def verdict(
    rank: int, source: int, target: int, at_s: int, condition: str, reason: str
) -> LinkVerdict:
    return made_records.verdict(rank, source, target, at_s * SECOND_NS, condition, reason=reason)


def pipeline_step(rank: int, number: int, *rows: tuple[str, int, int]) -> PipelineStep:
    """Return a step of 100 ms that began at `number` times 100 ms: (token, start, end) in ms."""
    computing_ms = sum(end - start for _, start, end in rows)
    return PipelineStep(
        rank=rank,
        step=number,
        time_ns=START_NS + number * 100 * MS_NS,
        wall_ns=100 * MS_NS,
        computing_ns=computing_ms * MS_NS,
        waiting_ns=(100 - computing_ms) * MS_NS,
        plan="1f1b",
        policy="ready",
        tokens=tuple(token for token, _, _ in rows),
        start_ns=tuple(start * MS_NS for _, start, _ in rows),
        end_ns=tuple(end * MS_NS for _, _, end in rows),
    )


def ended(rank: int, at_s: int = 60) -> Counters:
    return Counters(rank=rank, time_ns=START_NS + at_s * SECOND_NS, values={})


def nic_of_rank_2(back_s: int | None = None) -> dict[str, list[Record]]:
    """Return the records of four hosts in which the links of rank 2 are silent from 10 s on."""
    members = (0, 1, 2, 3)
    found: dict[str, list[Record]] = {}
    for rank in members:
        opened = GroupOpened(rank=rank, time_ns=START_NS, size=4, epoch=1, members=members)
        peers = [peer for peer in members if peer != rank]
        found[f"rank{rank}"] = [opened]
        for at in range(1, 21):
            found[f"rank{rank}"] += [report(rank, peer, at) for peer in peers]
            conditions = {10: "silent", back_s: "back"}
            if condition := conditions.get(at):
                found[f"rank{rank}"] += [
                    verdict(rank, rank, peer, at, condition, f"link {rank}>{peer} {condition}")
                    for peer in peers
                    if 2 in (rank, peer)
                ]
        found[f"rank{rank}"].append(ended(rank, 21))
    return found


def unix(*seconds: float) -> Any:
    """Return the Unix times at these seconds after the ranks' beginning, as close as a float is."""
    return pytest.approx([START_NS / 1e9 + each for each in seconds], abs=1e-5)


def job_of(directory: Path, **records: list[Record]) -> Job:
    """Write the records of the ranks rank0, rank1, ... after their headers, and read them."""
    for name, given in records.items():
        rank = int(name.removeprefix("rank"))
        write(directory, rank, header(rank), *given)
    job = Job(directory)
    job.update()
    return job


def cell(shown: dict[str, Any], source: int, target: int) -> dict[str, Any]:
    """Return the cell of one direction in the panel of links."""
    (found,) = [
        each for each in shown["cells"] if (each["source"], each["target"]) == (source, target)
    ]
    return found
