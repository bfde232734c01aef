"""Records of a job with known figures."""

import made_records
from made_records import MS_NS, SECOND_NS, START_NS

from slackline.telemetry import (
    Counters,
    LinkReport,
    LinkVerdict,
    Operations,
    PipelineStep,
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
        outward=f"link {rank}>{peer} is well: 0.2 ms one way as usual",
        inward=f"link {peer}>{rank} is well: 0.2 ms one way as usual",
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


def ended(rank: int) -> Counters:
    return Counters(rank=rank, time_ns=START_NS + 60 * SECOND_NS, values={})
