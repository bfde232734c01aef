"""A rank's telemetry file, read while the rank writes it, with the time of each record."""

from collections.abc import Callable, Iterator
from pathlib import Path

from slackline.history._tail import RecordTail
from slackline.history._times import written_ns
from slackline.records import FileHeader, Record

__all__ = ["TimedTail"]


class TimedTail:
    """A reader of the records that a rank adds, and of the times at which the rank wrote them."""

    def __init__(self, path: Path, report: Callable[[str], None]) -> None:
        """Create a reader that calls `report` with a sentence for each line that is no record."""
        self._tail = RecordTail(path, report)
        self._header: FileHeader | None = None
        self._latest_ns = 0

    @property
    def cut(self) -> bool:
        """Whether the file ends within a line."""
        return self._tail.cut

    def read(self) -> Iterator[tuple[int, Record]]:
        """Yield each new record with its Unix time by the clock of the rank's host.

        The times never fall: a record about an earlier time, or without a time, has the time of the
        record before it.
        """
        for record in self._tail.read():
            if isinstance(record, FileHeader):
                self._header = record
            header = self._header
            if header is not None and (monotonic_ns := written_ns(record, header)) is not None:
                time_ns = monotonic_ns - header.monotonic_ns + header.time_ns
                self._latest_ns = max(self._latest_ns, time_ns)
            yield self._latest_ns, record
