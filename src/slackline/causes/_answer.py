"""The answer to the question why a job is slow, or why it failed."""

from dataclasses import dataclass
from pathlib import Path
from time import time_ns

from slackline.causes._cause import Kind
from slackline.causes._spells import Recurrence, Spell, recurrences
from slackline.causes._watch import Watch
from slackline.causes.ending import Explanation, explain, gather
from slackline.history import Job

__all__ = ["Answer", "answer"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Why a job failed, or that it runs or has ended, and what made its steps slow."""

    watch: Watch
    """The job, and the causes that were named in it."""
    ending: Explanation
    """The end of the job in three sentences."""
    problems: tuple[str, ...]
    """Sentences about files that are missing or cannot be read."""

    @property
    def spells(self) -> list[Spell]:
        """The times in which causes held, in the order in which they were named."""
        return list(self.watch.spells)

    @property
    def slow(self) -> list[Recurrence]:
        """The causes of slow steps in the order of their first evidence.

        Dead ranks are left out: `ending` tells of them.
        """
        found = recurrences(self.watch.spells)
        return [each for each in found if each.cause.kind is not Kind.DEAD]


def answer(directory: Path, now_ns: int | None = None) -> Answer:
    """Return the answer that the files in `directory` give at the Unix time `now_ns`, or now.

    `directory` is one of `slackline run --keep`, or of SLACKLINE_TELEMETRY; the ranks may still
    write. Raises UsageError if it is no directory, or has no file of a rank.
    """
    at_ns = time_ns() if now_ns is None else now_ns
    watch = Watch(Job(directory))
    watch.update(at_ns)
    evidence = gather(directory, watch.job, now_ns=at_ns)
    return Answer(watch=watch, ending=explain(evidence), problems=evidence.problems)
