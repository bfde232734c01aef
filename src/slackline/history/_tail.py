"""A rank's telemetry file, read while the rank writes it."""

from collections.abc import Callable, Iterator
from pathlib import Path

from slackline._file_tail import FileTail
from slackline.history._files import LineReader
from slackline.records import Record

__all__ = ["RecordTail"]

_PIECE_BYTES = 1 << 18
"""The bytes that are read at a time: a file may be larger than the memory."""


class RecordTail:
    """A reader of the records that a rank adds to its telemetry file."""

    def __init__(self, path: Path, report: Callable[[str], None]) -> None:
        """Create a reader that calls `report` with a sentence for each line that is no record."""
        self._reader = LineReader(path, report)
        self._tail = FileTail(path)
        self._unfinished = b""

    def read(self) -> Iterator[Record]:
        """Yield the records of the lines that have become complete since the last call."""
        while added := self._tail.read(_PIECE_BYTES):
            *lines, self._unfinished = (self._unfinished + added).split(b"\n")
            for line in lines:
                if (record := self._reader.take(line)) is not None:
                    yield record

    @property
    def cut(self) -> bool:
        """Whether the file ends within a line."""
        return bool(self._unfinished)
