"""Rules for ranks that failed: crashes, exceptions, exit codes, disagreements and lost ranks.

A rule returns None if it does not apply.
"""

import re
import signal
from collections import Counter

from slackline.causes.ending._evidence import Evidence, RankEvidence
from slackline.causes.ending._findings import Failed, Raised, failed, raised
from slackline.causes.ending._places import place_of, position, script_frame
from slackline.causes.ending._words import (
    Explanation,
    capital,
    operation_name,
    ranks_named,
    time_of,
)
from slackline.records.failures import Error, Frame, OperationState
from slackline.units import count

__all__ = ["crash", "disagreement", "exception", "exit_code", "link", "lost_rank", "thread"]

_MEMORY = re.compile(r"(^|\.)(MemoryError|OutOfMemoryError)$")
_MEMORY_TEXT = re.compile(r"out of memory|can't allocate memory|Cannot allocate memory", re.I)
_MOST_TEXT = 300


def crash(evidence: Evidence) -> Explanation | None:
    """Explain a fatal signal, such as a segmentation fault, on one rank."""
    dead = [each for each in evidence.ranks.values() if each.dump is not None and each.dump.fatal]
    if not dead:
        return None
    first = dead[0]
    assert first.dump is not None
    frame = position(first)
    where = "" if frame is None else f" at {place_of(frame)}"
    wait, waiting, operation = _waited(evidence, {first.rank})
    return Explanation(
        kind="crash",
        cause=f"Rank {first.rank} crashed{where}: {first.dump.fatal}.",
        wait=wait,
        advice=f"Look at the extension that rank {first.rank} calls{where}, and at its core file.",
        ranks=tuple(each.rank for each in dead),
        waiting=waiting,
        operation=operation,
    )


def exception(evidence: Evidence) -> Explanation | None:
    """Explain the first exception that neither another rank nor the network has caused."""
    own = [each for each in raised(evidence) if not each.of_others and not each.interrupted]
    if not own:
        return None
    first = own[0]
    alike = {each.rank for each in own if _same(each, first)} | {first.rank}
    frame = script_frame(first.error.frames)
    where = "" if frame is None else f", at {place_of(frame)}"
    text = _text(first.error)
    memory = any(
        _MEMORY.search(each.type) or _MEMORY_TEXT.search(each.message)
        for each in first.event.errors
    )
    time = time_of(first.event.time_ns)
    who = capital(ranks_named(alike))
    how = "ran out of memory" if memory else "failed first"
    wait, waiting, operation = _waited(evidence, alike)
    look = f"its output{'' if frame is None else f' and at {frame.file}:{frame.line}'}"
    if len(alike) > 1:
        look = look.replace("its", "their", 1)
    less = "Reduce the memory that the script needs, or give the host more, and look" * memory
    return Explanation(
        kind="memory" if memory else "exception",
        cause=f"{who} {how} at {time}{where}: {text}",
        wait=wait,
        advice=f"{less or 'Look'} at {ranks_named(alike)}: {look}.",
        ranks=tuple(sorted(alike)),
        waiting=waiting,
        operation=operation,
    )


def thread(evidence: Evidence) -> Explanation | None:
    """Explain a job in which only a thread beside the main one has failed."""
    own = [each for each in raised(evidence, "thread") if not each.of_others]
    if not own:
        return None
    first = own[0]
    frame = script_frame(first.error.frames)
    where = "" if frame is None else f", at {place_of(frame)}"
    wait, waiting, operation = _waited(evidence, {first.rank})
    time = time_of(first.event.time_ns)
    return Explanation(
        kind="thread",
        cause=f"A thread of rank {first.rank} failed at {time}{where}: {_text(first.error)}",
        wait=wait,
        advice=f"Look at the work that this thread of rank {first.rank} should have done.",
        ranks=(first.rank,),
        waiting=waiting,
        operation=operation,
    )


def exit_code(evidence: Evidence) -> Explanation | None:
    """Explain a rank that exited with a code of its own, without an exception."""
    own = [
        each
        for each in evidence.ranks.values()
        if (each.exit_code or 0) > 0
        and not any(event.errors or event.failed for event in each.events)
    ]
    if not own:
        return None
    ranks = {each.rank for each in own if each.exit_code == own[0].exit_code}
    opened = all(each.seen_ns for each in own if each.rank in ranks)
    before = "" if opened else " before the group was open"
    wait, waiting, operation = _waited(evidence, ranks)
    return Explanation(
        kind="exit",
        cause=f"{capital(ranks_named(ranks))} exited with code {own[0].exit_code}{before}, "
        "without an exception that a report has.",
        wait=wait,
        advice=f"Look at the output of {ranks_named(ranks)}.",
        ranks=tuple(sorted(ranks)),
        waiting=waiting,
        operation=operation,
    )


def disagreement(evidence: Evidence) -> Explanation | None:
    """Explain ranks that posted different operations at the same place."""
    found = failed(evidence, "MismatchError")
    if not found:
        return None
    first = min(found, key=lambda each: (each.event.time_ns, each.rank))
    operation = first.operation
    ranks = {first.rank, operation.error_peer} - {-1}
    places = [
        f"rank {rank} at {place_of(frame)}"
        for rank in sorted(ranks)
        if rank in evidence.ranks and (frame := _raised_at(evidence, rank)) is not None
    ]
    text = operation.message
    if operation.members != tuple(range(len(operation.members))):
        text += f" (numbers in the group of {ranks_named(operation.members)})"
    lines = f"The calls: {' and '.join(places)}." if places else "No report has the calls' lines."
    return Explanation(
        kind="disagreement",
        cause=f"{capital(text)}.",
        wait=lines,
        advice="Compare these calls: all ranks of a group must call the same operations, with the "
        "same sizes and types, in the same order.",
        ranks=tuple(sorted(ranks)),
        operation=operation,
    )


def lost_rank(evidence: Evidence) -> Explanation | None:
    """Explain a rank that was killed, left the group, or aborted it, while others needed it."""
    named = Counter(
        each.operation.error_peer
        for each in failed(evidence, "PeerError")
        if each.operation.error_peer >= 0
    )
    for rank, each in evidence.ranks.items():
        if each.exit_code is not None and each.exit_code < 0 and not _terminated(each):
            named[rank] += len(evidence.ranks)
    told = {
        rank: [each for each in failed(evidence, "PeerError") if each.operation.error_peer == rank]
        for rank in named
    }
    lost = [rank for rank in named if not _has_failed(evidence, rank)]
    lost = [rank for rank in lost if _left(told[rank]) or not _lives(evidence, rank, told[rank])]
    if not lost:
        return None
    rank = min(lost, key=lambda each: (-named[each], each))
    facts = evidence.ranks.get(rank, RankEvidence(rank=rank))
    wait, waiting, operation = _waited(evidence, {rank})
    kind, cause, advice = _loss(facts, [each.operation for each in told[rank]], evidence)
    return Explanation(
        kind=kind,
        cause=cause,
        wait=wait,
        advice=advice,
        ranks=(rank,),
        waiting=waiting,
        operation=operation,
    )


def link(evidence: Evidence) -> Explanation | None:
    """Explain two ranks that lost each other although both processes were alive."""
    pairs = Counter(
        (min(each.rank, each.operation.error_peer), max(each.rank, each.operation.error_peer))
        for each in failed(evidence, "LinkError", "FrameError", "PeerError")
        if each.operation.error_peer >= 0 and each.rank != each.operation.error_peer
    )
    hard = failed(evidence, "LinkError", "FrameError")
    if not pairs:
        return None
    sure = {
        (min(each.rank, each.operation.error_peer), max(each.rank, each.operation.error_peer))
        for each in hard
    }
    low, high = min(pairs, key=lambda pair: (pair not in sure, -pairs[pair], pair))
    hosts = [evidence.ranks[rank].host for rank in (low, high) if rank in evidence.ranks]
    between = f"hosts {hosts[0]} and {hosts[1]}" if len(set(hosts)) == 2 else "these ranks"
    wait, waiting, operation = _waited(evidence, {low, high})
    return Explanation(
        kind="link",
        cause=f"The network between rank {low} and rank {high} failed: no rail of their link was "
        "left, and both processes were alive.",
        wait=wait,
        advice=f"Look at the NICs, the cables and the switch between {between}; slackline doctor "
        "tests their connections.",
        ranks=(low, high),
        waiting=waiting,
        operation=operation,
    )


def _loss(
    rank: RankEvidence, told: list[OperationState], evidence: Evidence
) -> tuple[str, str, str]:
    """Return the kind of a rank's loss, the sentence on it, and the advice.

    `told` are the operations of other ranks that failed because of the rank.
    """
    name = f"Rank {rank.rank}"
    aborts = [each.message for each in told if each.departure == "aborted"]
    if aborts:
        # The message is "rank 1 aborted the group: REASON (during OPERATION)".
        reason = _short(aborts[0].partition(": ")[2].partition(" (during ")[0])
        cause = f"{name} aborted the group: {reason}."
        return "aborted", cause, f"Look at the output of rank {rank.rank}."
    died = rank.exit_code is not None and rank.exit_code < 0
    if rank.ended or (not died and any(each.departure == "closed" for each in told)):
        cause = f"{name} left the group in good order while other ranks still needed it."
        advice = (
            "Make all ranks call the same number of operations: compare their numbers of steps."
        )
        return "left", cause, advice
    if died:
        cause = f"{name} is gone: its process was killed by {_signal(-(rank.exit_code or 0))}."
    elif rank.seen_ns:
        cause = (
            f"{name} is gone: it left no report, and its telemetry ends at "
            f"{time_of(rank.seen_ns)} without the final counters, so its process was killed or "
            "its host has failed."
        )
    else:
        cause = f"{name} is gone: it left neither a report nor telemetry."
    host = f"host {rank.host}" if rank.host else "its host"
    killed = max(
        (
            event.killed_for_memory
            for each in evidence.ranks.values()
            if rank.host and each.host == rank.host
            for event in each.events
        ),
        default=0,
    )
    if killed:
        processes = count(killed, "process", "processes")
        cause = (
            f"{cause[:-1]}; the kernel of {host} has killed {processes} for lack of memory "
            "meanwhile."
        )
        advice = f"Give {host} more memory or reduce the memory of its ranks; dmesg names them."
        return "killed", cause, advice
    advice = (
        f"Look at the kernel's log of {host} (dmesg), which names processes killed for lack of "
        f"memory, and at the output of rank {rank.rank}."
    )
    return "killed", cause, advice


def _waited(
    evidence: Evidence, causes: set[int]
) -> tuple[str, tuple[int, ...], OperationState | None]:
    """Return the sentence on the ranks that failed because of `causes`, these ranks, and the
    operation that they waited in.
    """
    found: list[Failed] = failed(evidence, "PeerError", "LinkError", "FrameError", "TimeoutError")
    others = [each for each in found if each.rank not in causes]
    waiting = [each for each in others if not each.operation.refused]
    mine = waiting or others
    if not mine:
        names = ranks_named(causes)
        return f"No report of another rank has an operation that waited for {names}.", (), None
    ranks = tuple(sorted({each.rank for each in mine}))
    first = min(mine, key=lambda each: (each.operation.posted_ns, each.rank)).operation
    verb = "waited in" if waiting else "could not begin"
    sentence = (
        f"{capital(ranks_named(ranks))} {verb} {operation_name(first)} and failed as a consequence."
    )
    return sentence, ranks, first


def _has_failed(evidence: Evidence, rank: int) -> bool:
    """Return whether a rank has lived to report a failure of its own operations or script."""
    events = evidence.ranks[rank].events if rank in evidence.ranks else ()
    return any(event.kind in ("failure", "exception") for event in events)


def _left(told: list[Failed]) -> bool:
    """Return whether other ranks were told that the rank left or aborted the group."""
    return any(each.operation.departure for each in told)


def _lives(evidence: Evidence, rank: int, told: list[Failed]) -> bool:
    """Return whether a rank has lived on after others had lost their link to it."""
    if rank not in evidence.ranks or not told:
        return False
    first_ns = min(each.event.time_ns for each in told)
    later = any(event.time_ns > first_ns for event in evidence.ranks[rank].events)
    return later or _terminated(evidence.ranks[rank])


def _terminated(rank: RankEvidence) -> bool:
    by_signal = rank.exit_code is not None and rank.exit_code == -signal.SIGTERM
    return by_signal or (rank.dump is not None and rank.dump.terminated)


def _raised_at(evidence: Evidence, rank: int) -> Frame | None:
    """Return the script's line at which a rank's exception began, else the rank's position."""
    for each in raised(evidence):
        if each.rank == rank:
            return script_frame(each.error.frames)
    return position(evidence.ranks[rank])


def _same(one: Raised, other: Raised) -> bool:
    return one.error.type == other.error.type and one.error.message == other.error.message


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _text(error: Error) -> str:
    """Return an exception in one line: "ValueError: wrong weights"."""
    return _short(f"{error.type}: {error.message}") if error.message else error.type


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_TEXT else line[: _MOST_TEXT - 1] + "…"
