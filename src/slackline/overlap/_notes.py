"""The records of one rank's training: to its telemetry file, and to the log."""

import time
from collections.abc import Callable
from pathlib import Path

from slackline.env import Environment
from slackline.records import DEFAULT_LIMIT_BYTES, Decision, Writer, Written, log_of

__all__ = ["Notes"]


class Notes:
    """The receiver of the records of one rank."""

    def __init__(self, rank: int, directory: Path | None) -> None:
        """Open the rank's file in `directory`; None writes no file.

        `rank` is the rank in the whole job.
        """
        environment = Environment.read()
        self.rank = rank
        """The rank in the whole job."""
        self.on_settled: Callable[[], None] | None = None
        """Called when the last parameter of an optimizer has taken its step."""
        self._log = log_of(environment)
        self._writer: Writer | None = None
        if directory is not None:
            limit = environment.telemetry_limit
            self._writer = Writer(directory, rank, limit_bytes=limit or DEFAULT_LIMIT_BYTES)

    @property
    def read(self) -> bool:
        """Whether records go to a telemetry file or to the log."""
        return self._writer is not None or self._log is not None

    def write(self, record: Written) -> None:
        """Write a record to the telemetry file and to the log, where there are any."""
        if self._writer is not None:
            self._writer.write(record)
        if self._log is not None:
            self._log.take(record)

    def decided(self, subject: str, choice: str, reason: str) -> None:
        """Write a record of a decision: the subject, such as "groups", the choice and the reason.

        Without a telemetry file and a log, does nothing.
        """
        now_ns = time.time_ns()
        self.write(
            Decision(rank=self.rank, time_ns=now_ns, subject=subject, choice=choice, reason=reason)
        )

    def close(self) -> None:
        """Close the telemetry file; a second call does nothing."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
