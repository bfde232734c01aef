"""Rules for jobs without an error that has a cause of its own: ended, interrupted, unfinished."""

from slackline.causes.ending._evidence import Evidence
from slackline.causes.ending._findings import raised
from slackline.causes.ending._places import place_of, position, script_frame
from slackline.causes.ending._words import Explanation, capital, ranks_named, time_of

__all__ = [
    "clean",
    "consequence",
    "interrupted",
    "running",
    "terminated",
    "unfinished",
    "unreadable",
]

_FRESH_NS = 5_000_000_000
"""The age of the latest record up to which a job counts as running."""


def unreadable(evidence: Evidence) -> Explanation | None:
    """Explain a directory in which no file of a rank can be read."""
    if evidence.ranks:
        return None
    return Explanation(
        kind="unreadable",
        cause="No file of a rank can be read.",
        wait="The end of the job is therefore unknown.",
        advice="Look at the notes about these files.",
    )


def interrupted(evidence: Evidence) -> Explanation | None:
    """Explain a job that Ctrl-C has ended."""
    found = [each for each in raised(evidence) if each.interrupted]
    if not found:
        return None
    ranks = tuple(sorted({each.rank for each in found}))
    frame = script_frame(found[0].error.frames)
    where = "" if frame is None else f" at {place_of(frame)}"
    time = time_of(found[0].event.time_ns)
    return Explanation(
        kind="interrupted",
        cause=f"{capital(ranks_named(ranks))} ended by Ctrl-C (SIGINT) at {time}.",
        wait=f"Rank {found[0].rank} was{where or ' at an unknown line'}.",
        advice="No rank has reported a failure before.",
        ranks=ranks,
    )


def consequence(evidence: Evidence) -> Explanation | None:
    """Explain ranks with errors that another rank or the network caused, without its report."""
    found = raised(evidence)
    if not found:
        return None
    first = found[0]
    ranks = tuple(sorted({each.rank for each in found}))
    silent = [rank for rank, each in evidence.ranks.items() if each.report is None]
    text = " ".join(f"{first.error.type}: {first.error.message}".split())[:300]
    missing = (
        f"No report is here of {ranks_named(silent)}."
        if silent
        else "All ranks have reported, and none has an error of its own."
    )
    look = f"the output of {ranks_named(silent or ranks)}"
    return Explanation(
        kind="consequence",
        cause=f"Rank {first.rank} failed first at {time_of(first.event.time_ns)}, by an error that "
        f"another rank or the network has caused: {text}",
        wait=missing,
        advice=f"Look at {look}.",
        ranks=tuple(silent),
        waiting=ranks,
    )


def terminated(evidence: Evidence) -> Explanation | None:
    """Explain ranks that SIGTERM has ended although no rank had failed."""
    ranks = [
        each for each in evidence.ranks.values() if each.dump is not None and each.dump.terminated
    ]
    if not ranks:
        return None
    numbers = tuple(each.rank for each in ranks)
    frame = position(ranks[0])
    where = "at an unknown line" if frame is None else f"at {place_of(frame)}"
    return Explanation(
        kind="terminated",
        cause=f"{capital(ranks_named(numbers))} ended by SIGTERM, and no rank has reported a "
        "failure before.",
        wait=f"Rank {numbers[0]} was {where}.",
        advice="Look for the sender of the signal: a scheduler, torchrun, or a time limit.",
        ranks=numbers,
    )


def running(evidence: Evidence) -> Explanation | None:
    """Tell of a job whose ranks still write records."""
    alive = [each for each in evidence.ranks.values() if not each.ended]
    late = tuple(e.rank for e in alive if evidence.now_ns - e.seen_ns >= _FRESH_NS)
    if not evidence.now_ns or len(late) == len(alive):
        return None
    return Explanation(
        kind="running",
        cause="The job runs, and no rank has reported a failure.",
        wait=f"No record of the last five seconds is of {ranks_named(late)}."
        if late
        else "All ranks have written records in the last five seconds.",
        advice="Watch the job with slackline top.",
        ranks=late,
    )


def unfinished(evidence: Evidence) -> Explanation | None:
    """Explain ranks without an end: they run, or were killed all at once."""
    open_ranks = [each for each in evidence.ranks.values() if not each.ended]
    if not open_ranks:
        return None
    numbers = tuple(each.rank for each in open_ranks)
    seen = [each.seen_ns for each in open_ranks if each.seen_ns]
    last = f"The latest record of these ranks is of {time_of(max(seen))}." if seen else ""
    return Explanation(
        kind="unfinished",
        cause=f"No rank has reported a failure, and the telemetry of {ranks_named(numbers)} has no "
        "final counters.",
        wait=last or "These ranks have no telemetry.",
        advice="Look whether the processes still run; if not, they were killed all at once, for "
        "example with their host.",
        ranks=numbers,
    )


def clean(evidence: Evidence) -> Explanation:
    """Explain a job in which nothing failed."""
    count = len(evidence.ranks)
    which = "The only rank" if count == 1 else f"All {count} ranks"
    return Explanation(
        kind="clean",
        cause=f"Nothing failed: {which[:1].lower()}{which[1:]} ended in good order.",
        wait="No rank has reported an operation that waited too long.",
        advice=f"The last finding about a link was: {evidence.findings[-1]}."
        if evidence.findings
        else "No finding about a link is in the telemetry.",
    )
