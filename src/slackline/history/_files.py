"""The files of a directory of telemetry, read line by line: every reader of records uses this one.

A file may be read while it is written. The last line may then be incomplete; readers skip such a
line until the rest has been written.
"""

import os
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path

from slackline.errors import UsageError
from slackline.history._lines import decode
from slackline.records import SCHEMA_VERSION, FileHeader, Record

__all__ = [
    "Flaws",
    "LineReader",
    "files_of",
    "read_all",
    "read_directory",
    "read_file",
    "telemetry_of",
]


_OF_RANKS = "rank-*.jsonl"
"""The names of the files of ranks."""


def telemetry_of(directory: Path) -> Path:
    """Return the folder with the ranks' files: the directory, or its folder "telemetry".

    Raises UsageError if `directory` is not a directory.
    """
    if not directory.is_dir():
        raise UsageError(f"there is no directory {str(directory)!r}")
    within = directory / "telemetry"
    return within if within.is_dir() else directory


def files_of(folder: Path) -> list[Path]:
    """Return the files of all ranks in a folder, in the order of the ranks."""
    return sorted(folder.glob(_OF_RANKS))


def new_files(folder: Path, known: set[str]) -> list[Path]:
    """Return the files of ranks that are not `known`, in the order of the ranks.

    `known` has the names of everything in the folder that earlier calls have found; this call adds
    what is new. A reader asks several times a second, and most often there is nothing.
    """
    try:
        fresh = [name for name in os.listdir(folder) if name not in known]
    except FileNotFoundError:  # The files of a job may be removed while they are watched.
        return []
    known.update(fresh)
    return [folder / name for name in sorted(fresh) if fnmatch(name, _OF_RANKS)]


class Flaws:
    """The sentences about lines of telemetry that could not be read and were left out."""

    def __init__(self) -> None:
        self.count = 0
        self.first = ""

    def __call__(self, sentence: str) -> None:
        """Count one more line, whose sentence is `sentence`."""
        self.count += 1
        self.first = self.first or sentence

    def __str__(self) -> str:
        """Return one sentence about all lines; empty if there was none."""
        if self.count < 2:
            return f"a line is left out: {self.first}" if self.count else ""
        return f"{self.count} lines are left out, the first of them: {self.first}"


class LineReader:
    """A reader of one file's lines, which checks the version of the schema.

    If a line is no record, the reader reports a sentence with the file's path and the line's
    number.
    """

    def __init__(self, path: Path, report: Callable[[str], None] | None = None) -> None:
        """Create a reader that calls `report` with each problem; without it, raises UsageError."""
        self._path = path
        self._report = report
        self._number = 0
        self._version: int | None = None
        self._refused = False

    @property
    def refused(self) -> bool:
        """Whether the file has another version of the schema, so that no line is read any more."""
        return self._refused

    def take(self, line: bytes) -> Record | None:
        """Return the record of the file's next line, with or without its newline.

        Returns None for a kind of record that this version does not know, and for a reported line.
        """
        self._number += 1
        if self._refused or not line.strip():
            return None
        try:
            record = decode(line.rstrip(b"\n"))
        except UsageError as error:
            self.flaw(f"the line is cut or damaged: {error}")
            return None
        if isinstance(record, FileHeader):
            self._version = record.version
        if self._version != SCHEMA_VERSION:
            given = "no version" if self._version is None else f"version {self._version}"
            self._refused = True
            self.flaw(
                f"the records have {given} of the schema, and this slackline reads version "
                f"{SCHEMA_VERSION}; the rest of the file is left out"
            )
            return None
        return record

    def flaw(self, problem: str) -> None:
        """Report a problem of the present line."""
        sentence = f"{self._path}:{self._number}: {problem}"
        if self._report is None:
            raise UsageError(sentence)
        self._report(sentence)


def read_all(path: Path, report: Callable[[str], None] | None = None) -> Iterator[Record]:
    """Yield every record of one file in the order written, `FileHeader` and `Gap` included.

    `report` receives a sentence for each line that cannot be read, also for an incomplete last
    line. Without `report` a bad line raises UsageError, and an incomplete last line is skipped.
    """
    reader = LineReader(path, report)
    with path.open("rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                if report is not None:
                    number = reader._number + 1
                    report(f"{path}:{number}: the last line is cut; it may still be written")
                return
            if (record := reader.take(line)) is not None:
                yield record


def read_file(path: Path, report: Callable[[str], None] | None = None) -> Iterator[Record]:
    """Yield the records of one file as `read_all` does, but no `FileHeader`."""
    for record in read_all(path, report):
        if not isinstance(record, FileHeader):
            yield record


def read_directory(
    directory: Path, report: Callable[[str], None] | None = None
) -> Iterator[Record]:
    """Yield the records of the files of all ranks as `read_file` does, rank by rank."""
    for path in files_of(directory):
        yield from read_file(path, report)
