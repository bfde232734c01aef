"""The telemetry directory, with one file for each rank, and the handle of a file's writer."""

from collections.abc import Callable
from pathlib import Path
from typing import Self

from slackline.records._journal import DEFAULT_LIMIT_BYTES, Journal, journal_of
from slackline.records._records import Written

__all__ = ["Writer", "file_of"]


def file_of(directory: Path, rank: int) -> Path:
    """Return the path of a rank's telemetry file in the directory."""
    return directory / f"rank-{rank:05d}.jsonl"


class Writer:
    """A handle to the process's writer of a rank's file.

    All handles of a process to the same file share one thread, which writes. Only one process at a
    time may write a file; a later process appends. No method raises an error of the disk: records
    that cannot be written are left out, and a `Gap` in the file states their number.
    """

    def __init__(
        self, directory: Path, rank: int, *, limit_bytes: int = DEFAULT_LIMIT_BYTES
    ) -> None:
        """Open the file of `rank`; create the file and its directory if they are missing.

        Beyond `limit_bytes` records are left out. Raises UsageError if `directory` is a file.
        """
        self._sources: list[Callable[[], list[Written]]] = []
        self._journal: Journal | None = journal_of(file_of(directory, rank), rank, limit_bytes)

    def write(self, record: Written) -> None:
        """Hand the record to the writer, without blocking; after `close` the call does nothing."""
        if self._journal is not None:
            self._journal.put(record)

    def poll(self, source: Callable[[], list[Written]]) -> None:
        """Have the writer's thread call `source` four times a second and write what it returns.

        The calls end when the handle is closed.
        """
        if self._journal is not None:
            self._journal.poll(source)
            self._sources.append(source)

    def flush(self) -> bool:
        """Block until the records handed in so far are written or left out; False after 5 s."""
        return self._journal is None or self._journal.flush()

    def close(self) -> None:
        """Close the handle; the last handle of the file to close writes all pending records.

        Blocks for at most 5 seconds. Further calls do nothing.
        """
        if self._journal is not None:
            for source in self._sources:
                self._journal.forget(source)
            self._journal.close()
            self._journal = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
