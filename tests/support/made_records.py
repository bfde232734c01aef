"""Records of telemetry for tests: usual values, of which each call changes those that matter."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slackline.records import (
    SCHEMA_VERSION,
    FileHeader,
    LinkReport,
    LinkVerdict,
    Operation,
    Operations,
    Record,
    StepSummary,
    encode,
    file_of,
)

__all__ = ["MS_NS", "SECOND_NS", "START_NS", "header", "link", "operations"]
__all__ += ["step", "verdict", "write"]

START_NS = 1_700_000_000_000_000_000
"""The Unix time at which the hosts' monotonic clocks show 0, unless a header says otherwise."""
SECOND_NS = 1_000_000_000
MS_NS = 1_000_000


def header(rank: int, **changes: Any) -> FileHeader:
    """Return the first record of a rank's process."""
    usual: dict[str, Any] = {
        "version": SCHEMA_VERSION,
        "rank": rank,
        "time_ns": START_NS,
        "monotonic_ns": 0,
        "host": f"host{rank}",
        "clock": "boot",
        "process": 100 + rank,
    }
    return FileHeader(**(usual | changes))


def step(rank: int, number: int, **changes: Any) -> StepSummary:
    """Return a step of 20 ms, 5 ms of them exposed."""
    usual: dict[str, Any] = {
        "rank": rank,
        "step": number,
        "time_ns": START_NS + number,
        "wall_ns": 20 * MS_NS,
        "exposed_ns": 5 * MS_NS,
        "reduced_bytes": 1000,
        "parameters": 2,
        "waited": 1,
    }
    return StepSummary(**(usual | changes))


def link(rank: int, peer: int, at_ns: int, **changes: Any) -> LinkReport:
    """Return the report of a TCP rail that has sent 200 Mbit and received 100 Mbit in a second."""
    usual: dict[str, Any] = {
        "rank": rank,
        "peer": peer,
        "rail": 0,
        "kind": "tcp",
        "at_ns": at_ns,
        "interval_ns": SECOND_NS,
        "sent_bytes": 25_000_000,
        "received_bytes": 12_500_000,
        "packets": 0,
        "resent": 0,
        "round_trip_ns": 200_000,
        "queued_bytes": 0,
        "unconfirmed_bytes": 0,
        "state": "up",
        "outward": "",
        "inward": "",
    }
    return LinkReport(**(usual | changes))


def verdict(
    rank: int, source: int, target: int, at_ns: int, condition: str, **changes: Any
) -> LinkVerdict:
    """Return a change in the condition of a direction of a link, which begins when it is found."""
    usual: dict[str, Any] = {
        "rank": rank,
        "time_ns": START_NS + at_ns,
        "at_ns": at_ns,
        "since_ns": at_ns,
        "condition": condition,
        "source": source,
        "target": target,
        "over_ns": 30 * MS_NS if condition == "slow" else 0,
        "reason": f"link {source}>{target} is {condition}",
    }
    return LinkVerdict(**(usual | changes))


def operations(rank: int, *rows: Sequence[int], lost: int = 0) -> Operations:
    """Return a batch of operations; a row has the columns of slackline.records.Operation."""
    return Operations(rank=rank, lost=lost, rows=tuple(Operation(*row) for row in rows))


def write(directory: Path, rank: int, *records: Record) -> None:
    """Add records to a rank's file, as its process does."""
    with file_of(directory, rank).open("a") as file:
        file.writelines(f"{encode(record)}\n" for record in records)
