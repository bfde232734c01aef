"""Rules for ranks that waited: for a rank that was late, for different calls, for data in between.

A rule returns None if it does not apply.
"""

from slackline.causes.ending._evidence import Evidence, RankEvidence
from slackline.causes.ending._findings import Shared, failed, key_of, shared
from slackline.causes.ending._places import communicates, place_of, position
from slackline.causes.ending._words import (
    Explanation,
    capital,
    operation_name,
    ranks_named,
    time_of,
)
from slackline.records.failures import OperationState
from slackline.units import show_time

__all__ = ["waited"]


def waited(evidence: Evidence) -> Explanation | None:
    """Explain the operation in which ranks waited the longest: without an end, or to a timeout."""
    operation = _longest(evidence)
    if operation is None:
        return None
    absent = operation.absent()
    # A rank that was ended before it could report may wait in the same operation.
    unknown = {rank for rank in absent if _waits_unreported(evidence, rank)}
    if absent - unknown:
        return _late(evidence, operation, absent - unknown)
    return _stuck(evidence, operation, unknown)


def _waits_unreported(evidence: Evidence, rank: int) -> bool:
    """Return whether a rank has no report and was last seen in a call that communicates."""
    facts = evidence.ranks.get(rank)
    return facts is not None and not facts.events and communicates(facts)


def _longest(evidence: Evidence) -> Shared | None:
    """Return the operation that explains the wait: of those that timed out the one posted first,
    else of those that hang.
    """
    keys = {
        key_of(each.operation, each.rank)
        for each in failed(evidence, "TimeoutError")
        if not each.operation.refused
    }
    if not keys:
        keys = {
            key_of(operation, rank)
            for rank, each in evidence.ranks.items()
            for event in each.events
            if event.kind == "hang"
            for operation in event.waiting[:1]
        }
    found = [shared(evidence, key) for key in keys]
    blamed = [each for each in found if any(state.missing for _, state in each.states.values())]
    return min(blamed or found, key=lambda each: (each.since_ns, str(each.key)), default=None)


def _late(evidence: Evidence, operation: Shared, absent: set[int]) -> Explanation:
    """Explain the ranks that have not posted an operation in which others wait."""
    ranks, waiting = tuple(sorted(absent)), tuple(sorted(operation.states))
    first = evidence.ranks.get(ranks[0], RankEvidence(rank=ranks[0]))
    elsewhere = _other_operation(first, operation)
    kind = "late" if elsewhere is None else "disagreement"
    cause, advice = _delay(evidence, operation, ranks, first, elsewhere)
    return Explanation(
        kind=kind,
        cause=cause,
        wait=f"{capital(ranks_named(waiting))} waited for {ranks_named(ranks)} since "
        f"{time_of(operation.since_ns)}, for {show_time(operation.waited_ns)}.",
        advice=advice,
        ranks=ranks,
        waiting=waiting,
        operation=operation.operation,
    )


def _delay(
    evidence: Evidence,
    operation: Shared,
    ranks: tuple[int, ...],
    first: RankEvidence,
    elsewhere: OperationState | None,
) -> tuple[str, str]:
    """Return the sentence on the late ranks, of which `first` is the lowest, and the advice."""
    name = operation_name(operation.operation)
    if operation.operation.kind in ("send", "recv"):
        name = f"the other end of {name}"
    frame = position(first)
    whose = "its" if len(ranks) == 1 else f"rank {ranks[0]}'s"
    at = "" if frame is None else f"main thread {{}} at {place_of(frame)}"
    if elsewhere is not None:
        waiting = ranks_named(operation.states.keys())
        where = f"; {whose} {at.format('is')}" if at else ""
        return (
            f"The ranks wait in different operations: {waiting} in {name}, and rank {ranks[0]} in "
            f"{operation_name(elsewhere)}{where}.",
            "Compare the calls of these ranks: all ranks of a group must call the same operations "
            "in the same order.",
        )
    look = ""
    if frame is not None:
        look = (
            f"Look at {frame.file}:{frame.line} on rank {ranks[0]}: slow data, a breakpoint, a "
            "lock or another branch holds the rank there."
        )
    if _all_ended(evidence):
        where = f", while {whose} {at.format('was')}" if at else ""
        return (
            f"All ranks ended in good order, but {ranks_named(ranks)} came late to {name}{where}.",
            look or f"Look at the work of {ranks_named(ranks)} before that operation.",
        )
    late = f"{capital(ranks_named(ranks))} never called {name}"
    if first.ended:
        return (
            f"{late}: rank {ranks[0]} has ended in good order before.",
            "Make all ranks call the same number of operations: compare their numbers of steps.",
        )
    if look:
        return f"{late}; {whose} {at.format('is')}.", look
    last = f", whose last record is of {time_of(first.seen_ns)}," if first.seen_ns else ""
    host = f" on host {first.host}" if first.host else ""
    return (
        f"{late}, and no report has the position of rank {ranks[0]}.",
        f"Look at the process of rank {ranks[0]}{last}{host}: the process is stopped, or code that "
        "holds the interpreter's lock keeps its other threads from running.",
    )


def _stuck(evidence: Evidence, operation: Shared, unknown: set[int]) -> Explanation:
    """Explain an operation that all ranks have posted, and whose data do not arrive.

    The ranks in `unknown` have not reported; their stacks show that they waited too.
    """
    name, waiting = operation_name(operation.operation), tuple(sorted(operation.states))
    missing = operation.stuck(unknown)
    missing.sort(key=lambda pair: not _disturbed(evidence, *pair))
    wait = (
        f"{capital(ranks_named(waiting))} waited since {time_of(operation.since_ns)}, for "
        f"{show_time(operation.waited_ns)}."
    )
    if not missing:
        return Explanation(
            kind="stuck",
            cause=f"{capital(ranks_named(waiting))} waited in {name}, and no report names a rank "
            "whose part was missing.",
            wait=wait,
            advice=f"The engine's own words are: {operation.operation.waits_for or 'none'}.",
            waiting=waiting,
            operation=operation.operation,
        )
    rank, other = missing[0]
    health = [
        sentence
        for end, peer in ((rank, other), (other, rank))
        if end in evidence.ranks
        for event in evidence.ranks[end].events[-1:]
        for rail in event.rails
        if rail.peer == peer
        for sentence in (rail.inward, rail.outward)
        if sentence
    ]
    said = f" The link's health: {health[0]}." if health else ""
    cause = (
        f"All ranks that the reports name have called {name}, and the data of rank {other} did not "
        f"reach rank {rank}{' in time' if _all_ended(evidence) else ''}."
    )
    if other in unknown:
        frame = position(evidence.ranks[other])
        where = "" if frame is None else f" at {place_of(frame)}"
        cause = (
            f"The data of rank {other} for {name} did not reach rank {rank}, and the "
            f"main thread of "
            f"rank {other} waited in a call of its own{where}."
        )
    return Explanation(
        kind="stuck",
        cause=cause,
        wait=wait,
        advice=f"Look at the network between rank {other} and rank {rank}.{said}",
        ranks=tuple(sorted({rank, other})),
        waiting=waiting,
        operation=operation.operation,
    )


def _disturbed(evidence: Evidence, rank: int, other: int) -> bool:
    """Return whether a rail between two ranks was not up, or had data that were not confirmed."""
    return any(
        rail.state != "up" or rail.unconfirmed_bytes > 0
        for end, peer in ((rank, other), (other, rank))
        if end in evidence.ranks
        for event in evidence.ranks[end].events[-1:]
        for rail in event.rails
        if rail.peer == peer
    )


def _other_operation(rank: RankEvidence, operation: Shared) -> OperationState | None:
    """Return another operation of the program that the rank waits in, or that timed out on it."""
    for event in reversed(rank.events):
        for each in (*event.waiting, *event.failed):
            mine = key_of(each, rank.rank) != operation.key and not each.internal
            if mine and not each.refused and each.group == operation.operation.group:
                return each
    return None


def _all_ended(evidence: Evidence) -> bool:
    return all(rank.ended and not rank.exit_code for rank in evidence.ranks.values())
