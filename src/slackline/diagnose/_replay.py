"""The diagnosis of a directory of telemetry, in the order of the records' times."""

from collections.abc import Iterable

from slackline.diagnose._diagnosis import Diagnosis
from slackline.diagnose._spells import Spell
from slackline.monitor import Job
from slackline.telemetry import Placed

__all__ = ["replay"]

_EVERY_NS = 250_000_000
"""The time between two evaluations."""


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
