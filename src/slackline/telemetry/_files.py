"""The telemetry directory, with one file for each rank: its writer and its readers.

Each line is written to the file in one call, so a reader sees whole lines. The exception is the
last line when a crash cut it short; the reader skips such a line.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from slackline.telemetry._lines import decode, encode
from slackline.telemetry._records import Record

__all__ = ["Writer", "file_of", "read_directory", "read_file"]


def file_of(directory: Path, rank: int) -> Path:
    """Return the path of a rank's records in the directory."""
    return directory / f"rank-{rank:05d}.jsonl"


class Writer:
    """A writer that appends a rank's records to its file and creates the directory.

    Only one process may write a file.
    """

    def __init__(self, directory: Path, rank: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(file_of(directory, rank), flags, 0o644)

    def write(self, record: Record) -> None:
        """Append the record as one line; after `close` the call does nothing."""
        if self._file >= 0:
            os.write(self._file, encode(record).encode() + b"\n")

    def close(self) -> None:
        """Close the file; a second call changes nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_file(path: Path) -> Iterator[Record]:
    """Yield the records of one file in the order written; raises UsageError for a bad line."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n") and (record := decode(line)) is not None:
                yield record


def read_directory(directory: Path) -> Iterator[Record]:
    """Yield the records of the files of all ranks, rank by rank."""
    for path in sorted(directory.glob("rank-*.jsonl")):
        yield from read_file(path)
