"""The explanation of a failed job: the rank that failed first, its last output, and the cause."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from slackline.cli._job._causes import how
from slackline.cli._job._launch import Ending, Job, ranks_named
from slackline.errors import UsageError
from slackline.views.terminal import Screen

if TYPE_CHECKING:
    from slackline.history import Job as History

__all__ = ["explain"]

_LAST_WORDS = 30
"""The number of lines that are shown of a failed rank's output."""


def explain(
    job: Job,
    ending: Ending,
    screen: Screen,
    history: "History | None" = None,
    *,
    shown: Collection[int] = (),
) -> None:
    """Report the rank that failed first, show its last output, and say why the job failed.

    The cause comes from the reports in the job's directory and from `history`, its telemetry, or
    from the files of the telemetry.

    The stderr of the ranks in `shown` is on the screen already: output is left out if it is that of
    such a rank, or ends like it.
    """
    if not ending.failures:
        ended = "; its ranks have been ended" if ending.torchrun < 0 else ""
        said = job.torchrun_log.read_bytes() if job.torchrun_log.exists() else b""
        screen.note(f"torchrun {how(ending.torchrun)}{ended}{':' if said else ''}")
        if said:
            screen.stderr(said)
        return
    cause, *others = ending.failures
    words = job.last_words(cause.rank, _LAST_WORDS)
    alike = [other for other in others if job.last_words(other.rank, 1) == words[-1:]]
    if not any(each.rank in shown for each in (cause, *alike)):
        for line in words:
            screen.stderr(f"rank {cause.rank} | {line}\n".encode())
    same = [other.rank for other in alike if other.exitcode == cause.exitcode]
    also = f"; so did {ranks_named(same)}" if same else ""
    screen.note(f"rank {cause.rank} {cause.reason}{also}")
    for sentence in _reasons(job.directory, history):
        screen.note(sentence)


def _reasons(directory: Path, history: "History | None") -> tuple[str, ...]:
    """Return the sentences of `slackline why`; none for a job whose ranks opened no group."""
    from slackline.causes.ending import explain as explain_evidence
    from slackline.causes.ending import gather

    try:
        evidence = gather(directory, history)
    except UsageError as error:  # The directory was removed, or its disk is full.
        return (str(error),)
    told = any(each.report or each.dump or each.seen_ns for each in evidence.ranks.values())
    return explain_evidence(evidence).sentences if told else ()
