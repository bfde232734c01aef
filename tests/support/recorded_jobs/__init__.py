"""Recorded jobs that were slow before they began.

The recordings are the telemetry of four ranks that trained on four hosts of a lab (200 Mbit/s) for
15 s, without the records that no diagnosis reads; "pipeline" is of eight ranks, whose processes
shared two cores and were late.
"""

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

from slackline.history import decode
from slackline.records import ClockOffset, FileHeader, LinkReport, Record, encode, file_of

__all__ = ["unpack"]


def unpack(name: str, directory: Path, *, apart_ns: int = 0) -> int:
    """Write the files of a recorded job's ranks; return the Unix time of the latest first record.

    Each rank's host has its own clocks, both of which are ahead of those of the rank before by
    `apart_ns` and by twice as much. Recordings with records of operations must not be moved.
    """
    source = Path(__file__).parent / f"{name}.jsonl.gz"
    began_ns = 0
    with gzip.open(source, "rt") as lines:
        for line in lines:
            record = decode(line)
            assert record is not None
            if apart_ns:
                record = _moved(record, apart_ns)
            if isinstance(record, FileHeader):
                began_ns = max(began_ns, record.time_ns)
            with file_of(directory, record.rank).open("a") as file:
                file.write(f"{encode(record)}\n")
    return began_ns


def _moved(record: Record, apart_ns: int) -> Record:
    """Return a record as a rank writes it whose clocks are ahead."""
    changes: dict[str, Any] = {}
    unix_ns, monotonic_ns = record.rank * apart_ns, 2 * record.rank * apart_ns
    if isinstance(record, FileHeader):
        changes["monotonic_ns"] = record.monotonic_ns + monotonic_ns
        changes["clock"] = f"clock {record.rank}"
    elif isinstance(record, ClockOffset | LinkReport):
        changes["at_ns"] = record.at_ns + monotonic_ns
    if isinstance(record, ClockOffset):
        changes["offset_ns"] = record.offset_ns + 2 * (record.peer - record.rank) * apart_ns
    if hasattr(record, "time_ns"):
        changes["time_ns"] = record.time_ns + unix_ns
    return replace(record, **changes)
