"""The causes of a job's slow steps, while its ranks write and afterwards."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from slackline.causes._cause import Cause
from slackline.causes._deaths import FOUND_NS
from slackline.causes._diagnosis import Diagnosis
from slackline.causes._spells import Spell
from slackline.errors import UsageError
from slackline.history import Job
from slackline.records import RailChange

__all__ = ["Watch"]

_EVERY_NS = 250_000_000
"""The time between two evaluations."""

_AFTER_NS = 5_000_000_000
"""The time after the latest record for which causes are still evaluated, for dead ranks."""


class Watch:
    """The state of a job and the causes of its slow steps, read from a directory of telemetry.

    Records that were there before the first reading are diagnosed in the order of their times: the
    causes are then the same as those of a watch that has read the records as they were written.
    """

    def __init__(self, job: Job) -> None:
        """Watch `job`, whose records no other object reads."""
        self.job = job
        """The state of the job."""
        self._diagnosis = Diagnosis(job)
        self._next_ns: int | None = None
        self._latest_ns = 0
        self._named: list[Cause] = []

    @classmethod
    def recorded(cls, directory: Path, now_ns: int) -> Self:
        """Return a watch of the job in `directory`, with all records up to the Unix time `now_ns`.

        Raises UsageError if `directory` is not a directory, and if it has no records that this
        version can read.
        """
        watch = cls(Job(directory))
        try:
            watch.job.check()
            watch.update(now_ns)
        except OSError as error:
            raise UsageError(f"{error.filename!r} cannot be read: {error.strerror}") from error
        return watch

    @property
    def first_ns(self) -> int:
        """The Unix time of the first record; 0 before it."""
        return self.job.begun_ns

    @property
    def spells(self) -> Sequence[Spell]:
        """The times in which causes have held, in the order of their names, without explained ones.

        A cause whose evidence another cause has explained afterwards is left out.
        """
        return [each for each in self._diagnosis.spells if not each.explained_by]

    @property
    def said(self) -> tuple[object, ...]:
        """A value that changes with each new finding, and when a cause begins or ends."""
        latest = self.job.findings[-1] if self.job.findings else None
        return latest, tuple(each.until_ns for each in self.spells)

    def take_named(self) -> list[Cause]:
        """Return the causes that have been named since the last call."""
        named, self._named = self._named, []
        return named

    def take_ended(self) -> list[Spell]:
        """Return the spells of causes that have turned out to be over since the last call."""
        return self._diagnosis.take_ended()

    def update(self, now_ns: int) -> int:
        """Read the records that ranks have added; return their number.

        `now_ns` is the Unix time. Call the function a few times a second while the job runs.
        """
        count = 0
        for written_ns, record in self.job.added():
            time_ns = min(written_ns, now_ns)  # The clock of a host may be ahead.
            self._evaluate(time_ns)
            self._latest_ns = max(self._latest_ns, time_ns)
            self.job.take(record)
            count += 1
            if isinstance(record, RailChange) and self._next_ns is not None:
                # What an engine knows is named soon.
                self._next_ns = min(self._next_ns, time_ns + FOUND_NS)
        self._evaluate(min(now_ns, self._latest_ns + _AFTER_NS))
        self.job.settle(now_ns)
        return count

    def _evaluate(self, until_ns: int) -> None:
        """Diagnose the job at each quarter of a second up to a time.

        A time in which no rank wrote anything is left out, except for its beginning.
        """
        if self._next_ns is None:
            if not self._latest_ns:
                return
            self._next_ns = self._latest_ns + _EVERY_NS
        while self._next_ns <= min(until_ns, self._latest_ns + _AFTER_NS):
            self.job.settle(self._next_ns)
            self._named += self._diagnosis.update(self._next_ns)
            self._next_ns += _EVERY_NS
        self._next_ns = max(self._next_ns, until_ns)
