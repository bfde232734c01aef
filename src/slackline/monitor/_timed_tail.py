"""A rank's telemetry file, read while the rank writes it, with the time of each record."""

from collections.abc import Callable, Iterator
from pathlib import Path

from slackline.telemetry import (
    ClockOffset,
    FileHeader,
    LinkReport,
    Operations,
    PipelineStep,
    Record,
    RecordTail,
)

__all__ = ["TimedTail"]


class TimedTail:
    """A reader of the records that a rank adds, and of the times at which the rank wrote them."""

    def __init__(self, path: Path, report: Callable[[str], None]) -> None:
        """Create a reader that calls `report` with a sentence for each line that is no record."""
        self._tail = RecordTail(path, report)
        self._to_unix_ns = 0
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
            self._latest_ns = max(self._latest_ns, self._time_of(record))
            yield self._latest_ns, record

    def _time_of(self, record: Record) -> int:
        match record:
            case FileHeader():
                self._to_unix_ns = record.time_ns - record.monotonic_ns
                return record.time_ns
            case LinkReport() | ClockOffset():
                return record.at_ns + self._to_unix_ns
            case Operations():
                return record.ended_ns + self._to_unix_ns
            case PipelineStep():
                return record.time_ns + record.wall_ns
            case _:
                return getattr(record, "time_ns", 0)
