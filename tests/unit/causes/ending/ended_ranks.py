"""Reports of ranks that end in different ways, for the tests of explanations."""

from typing import Any

from slackline.causes.ending import Evidence, RankEvidence, explain
from slackline.records.failures import (
    Dump,
    Error,
    Event,
    Frame,
    MissingPart,
    OperationState,
    Report,
    Thread,
)

_NOON_NS = 1_700_049_600_000_000_000
"""12:00:00 UTC."""

_SECOND_NS = 1_000_000_000

_TORCH = Frame(file="/venv/lib/python3.12/site-packages/torch/nn.py", line=7, function="forward")
_WORK = Frame(file="/src/slackline/backend/operations/_work.py", line=50, function="wait")
_TOP = Frame(file="train.py", line=40, function="<module>")


def stack(line: int, function: str = "step") -> tuple[Frame, ...]:
    return _WORK, _TORCH, Frame(file="train.py", line=line, function=function), _TOP


def an_operation(
    *missing: int, sequence: int = 7, state: str = "silent", error: str = "", **more: Any
) -> OperationState:
    given: dict[str, Any] = {
        "kind": "all_reduce",
        "bytes": 4000,
        "group": 1,
        "members": (0, 1, 2),
        "tag": -1,
        "internal": 0,
        "peer": -1,
        "plan": "ring",
        "posted_ns": 5 * _SECOND_NS,
        "usual_ns": 0,
        "waits_for": "",
    }
    parts = tuple(MissingPart(rank=rank, state=state) for rank in missing)
    return OperationState(sequence=sequence, missing=parts, error=error, **{**given, **more})


def an_event(
    kind: str,
    *,
    after_s: float = 0,
    line: int = 12,
    errors: tuple[Error, ...] = (),
    failed: tuple[OperationState, ...] = (),
    waiting: tuple[OperationState, ...] = (),
    **more: Any,
) -> Event:
    """Return an event `after_s` seconds after 12:00:00 UTC; the rank's monotonic clock is then at
    10 s and `after_s`."""
    return Event(
        kind=kind,
        time_ns=_NOON_NS + int(after_s * _SECOND_NS),
        monotonic_ns=10 * _SECOND_NS + int(after_s * _SECOND_NS),
        errors=errors,
        failed=failed,
        waiting=waiting,
        threads=(Thread(name="MainThread", main=True, frames=stack(line)),),
        **more,
    )


def raising(type_: str, message: str, *, after_s: float = 0, line: int = 12, **more: Any) -> Event:
    error = Error(type=type_, message=message, frames=stack(line))
    return an_event("exception", after_s=after_s, errors=(error,), line=line, **more)


def losing(
    peer: int,
    message: str,
    *,
    after_s: float = 1,
    error: str = "PeerError",
    refused: bool = False,
    departure: str = "",
) -> Event:
    operation = an_operation(
        peer,
        error=error,
        error_peer=peer,
        message=message,
        refused=refused,
        departure=departure,
    )
    return an_event("failure", after_s=after_s, failed=(operation,))


def of_rank(rank: int, *events: Event, **facts: Any) -> RankEvidence:
    report = None
    if events:
        report = Report(
            version=1,
            rank=rank,
            host="a",
            clock="c",
            process=rank,
            script="train.py",
            events=events,
        )
    given = {"host": "a", "seen_ns": _NOON_NS, **facts}
    return RankEvidence(rank=rank, report=report, **given)


def a_dump(rank: int, *, fatal: str = "", line: int = 30, calls: bool = False) -> Dump:
    """Return the stacks at a signal; with `calls` the main thread is in a call of slackline."""
    frames = stack(line, "load") if calls else stack(line, "load")[1:]
    threads = (Thread(name="MainThread", main=True, frames=frames),)
    return Dump(rank=rank, process=rank, opened_ns=0, fatal=fatal, threads=threads)


def told(*ranks: RankEvidence, **more: Any) -> tuple[str, tuple[str, str, str]]:
    found = explain(Evidence(ranks={each.rank: each for each in ranks}, **more))
    return found.kind, found.sentences


CONSEQUENCE = "Ranks 0 and 2 waited in all_reduce number 7 (3.91 KiB, plan ring) and failed as "
CONSEQUENCE += "a consequence."
CLOSED = "the link to rank 1 (tcp) closed unexpectedly: the peer has closed the connection"
ORDERLY = "rank 1 closed the group: it called destroy_process_group() or ended"
