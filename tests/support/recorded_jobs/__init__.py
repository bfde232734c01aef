"""Recorded jobs that were slow before they began.

The recordings are the telemetry of four ranks that trained on four hosts of a lab (200 Mbit/s) for
15 s, without the records that no diagnosis reads.
"""

import gzip
from pathlib import Path

from slackline.telemetry import FileHeader, decode, encode, file_of

__all__ = ["unpack"]


def unpack(name: str, directory: Path) -> int:
    """Write the files of a recorded job's ranks; return the Unix time of the latest first record."""
    source = Path(__file__).parent / f"{name}.jsonl.gz"
    began_ns = 0
    with gzip.open(source, "rt") as lines:
        for line in lines:
            record = decode(line)
            assert record is not None
            if isinstance(record, FileHeader):
                began_ns = max(began_ns, record.time_ns)
            with file_of(directory, record.rank).open("a") as file:
                file.write(f"{encode(record)}\n")
    return began_ns
