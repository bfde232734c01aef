"""The diagnosis of a directory of telemetry, in the order of the records' times."""

from collections.abc import Iterable, Iterator

from slackline.diagnose._cause import Cause
from slackline.diagnose._diagnosis import Diagnosis
from slackline.monitor import Job
from slackline.telemetry import Placed

__all__ = ["replay"]

_EVERY_NS = 250_000_000
"""The time between two evaluations."""


def replay(job: Job, records: Iterable[Placed], until_ns: int) -> Iterator[tuple[int, Cause]]:
    """Yield each cause with the Unix time at which it became certain, up to `until_ns`.

    `records` come in the order of their times, as `slackline.telemetry.merge` returns them; the
    function adds them to `job`, which must be without records.
    """
    diagnosis = Diagnosis(job)
    next_ns: int | None = None
    for placed in records:
        if next_ns is None:
            next_ns = placed.time_ns + _EVERY_NS
        while placed.time_ns >= next_ns:
            yield from _evaluate(job, diagnosis, next_ns)
            next_ns += _EVERY_NS
        job.take(placed.record)
    while next_ns is not None and next_ns <= until_ns:
        yield from _evaluate(job, diagnosis, next_ns)
        next_ns += _EVERY_NS


def _evaluate(job: Job, diagnosis: Diagnosis, now_ns: int) -> Iterator[tuple[int, Cause]]:
    job.settle(now_ns)
    for cause in diagnosis.update(now_ns):
        yield now_ns, cause
