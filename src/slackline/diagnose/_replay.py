"""The diagnosis of a directory of telemetry, in the order of the records' times."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from slackline.diagnose._diagnosis import Diagnosis
from slackline.diagnose._spells import Spell
from slackline.monitor import Job
from slackline.telemetry import Placed, merge

__all__ = ["Diagnosed", "diagnosed", "replay"]

_EVERY_NS = 250_000_000
"""The time between two evaluations."""

_AFTER_NS = 5_000_000_000
"""The time after the last record for which causes are still evaluated, for ranks that have died."""


@dataclass(frozen=True, kw_only=True)
class Diagnosed:
    """A directory of telemetry with the causes of its slow steps."""

    job: Job
    """The state of the job at its last record."""
    first_ns: int
    """The Unix time of the first record."""
    spells: list[Spell]
    """The times in which causes held, in the order of their names."""


def diagnosed(directory: Path, now_ns: int, report: Callable[[str], None]) -> Diagnosed | None:
    """Return the causes of a directory's slow steps up to the Unix time `now_ns`.

    `report` receives a sentence about each file or line that cannot be read. None stands for a
    directory without telemetry.
    """
    job = Job(directory)
    records = list(merge(job.directory, report))
    if not records:
        return None
    spells = replay(job, records, min(records[-1].time_ns + _AFTER_NS, now_ns))
    return Diagnosed(job=job, first_ns=records[0].time_ns, spells=spells)


def replay(job: Job, records: Iterable[Placed], until_ns: int) -> list[Spell]:
    """Return the times in which causes held up to `until_ns`, in the order of their names.

    `records` come in the order of their times, as `slackline.telemetry.merge` returns them; the
    function adds them to `job`, which must be without records.
    """
    diagnosis = Diagnosis(job)
    next_ns: int | None = None
    for placed in records:
        if next_ns is None:
            next_ns = placed.time_ns + _EVERY_NS
        while placed.time_ns >= next_ns:
            _evaluate(job, diagnosis, next_ns)
            next_ns += _EVERY_NS
        job.take(placed.record)
    while next_ns is not None and next_ns <= until_ns:
        _evaluate(job, diagnosis, next_ns)
        next_ns += _EVERY_NS
    return diagnosis.spells


def _evaluate(job: Job, diagnosis: Diagnosis, now_ns: int) -> None:
    job.settle(now_ns)
    diagnosis.update(now_ns)
