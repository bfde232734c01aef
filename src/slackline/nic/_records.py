"""The telemetry that one engine writes to its process's file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from slackline.telemetry import Counters, GroupOpened, Record, Writer

__all__ = ["Records"]


class Records:
    """The writer of an engine's telemetry, whose file is named by the process's rank in the job.

    The first group that the engine opens gives the rank. Without a directory nothing is written.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._writer: Writer | None = None
        self._rank = -1

    def opened(self, rank: int, size: int) -> None:
        """Write that the links of a group of `size` ranks are made; `rank` is that in the job.

        Only the first group's call does anything.
        """
        if self._directory is None or self._writer is not None:
            return
        self._rank = rank
        self._writer = Writer(self._directory, rank)
        self._writer.write(GroupOpened(rank=rank, time_ns=time.time_ns(), size=size))

    def write(self, record: Record) -> None:
        """Append a record; do nothing before the first group and after `close`."""
        if self._writer is not None:
            self._writer.write(record)

    def close(self, counters: Mapping[str, int]) -> None:
        """Write the engine's final counters and close the file; a second call does nothing."""
        if self._writer is None:
            return
        self.write(Counters(rank=self._rank, time_ns=time.time_ns(), values=dict(counters)))
        self._writer.close()
        self._writer = None
        self._directory = None
