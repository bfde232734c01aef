"""Facts that several rules need: failed operations, exceptions, and an operation on all ranks."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from slackline.causes.ending._evidence import Evidence, RankEvidence
from slackline.records.failures import Error, Event, OperationState

__all__ = ["Failed", "Key", "Raised", "Shared", "failed", "key_of", "raised", "shared"]

_OF_OTHERS = re.compile(
    r"\b(PeerError|LinkError|FrameError|ClosedError|MismatchError|slackline\.errors\.TimeoutError|"
    r"Dist(Store|Network|Backend)Error)\b"
)
"""The classes of errors that another rank or the network has caused."""

_WRAPPED = re.compile(r"\b(PeerError|LinkError|FrameError|TimeoutError|MismatchError): ")
"""The beginning of the text of slackline's error in an error of torch."""

Key = tuple[object, ...]


@dataclass(frozen=True)
class Raised:
    """An exception that ended the script of a rank, or another thread of it."""

    rank: int
    event: Event

    @property
    def error(self) -> Error:
        """The exception itself."""
        return self.event.errors[0]

    @property
    def of_others(self) -> bool:
        """Whether another rank or the network has caused the exception or one of its causes."""
        return any(
            _OF_OTHERS.search(each.type) is not None or _WRAPPED.search(each.message) is not None
            for each in self.event.errors
        )

    @property
    def interrupted(self) -> bool:
        """Whether the exception is Ctrl-C."""
        return self.error.type == "KeyboardInterrupt"


@dataclass(frozen=True)
class Failed:
    """An operation that failed on a rank."""

    rank: int
    event: Event
    operation: OperationState


@dataclass
class Shared:
    """An operation as the ranks of its group saw it last."""

    key: Key
    states: dict[int, tuple[Event, OperationState]] = field(default_factory=dict)
    """The latest event and state on each rank that had posted the operation."""

    @property
    def operation(self) -> OperationState:
        """The state on the lowest of these ranks."""
        return self.states[min(self.states)][1]

    @property
    def waited_ns(self) -> int:
        """The longest time for which a rank had waited in the operation."""
        return max(event.monotonic_ns - state.posted_ns for event, state in self.states.values())

    @property
    def since_ns(self) -> int:
        """The Unix time of the earliest post."""
        return min(
            event.time_ns - (event.monotonic_ns - state.posted_ns)
            for event, state in self.states.values()
        )

    def absent(self) -> set[int]:
        """Return the ranks that others wait for and that have not posted the operation."""
        named = {
            part.rank
            for _, state in self.states.values()
            for part in state.missing
            if part.state == "silent"
        }
        return named - set(self.states)

    def stuck(self, unknown: Collection[int] = ()) -> list[tuple[int, int]]:
        """Return (waiting rank, other rank) for each missing part of a rank that has posted, or
        that is in `unknown`.
        """
        return sorted(
            (rank, part.rank)
            for rank, (_, state) in self.states.items()
            for part in state.missing
            if part.rank in self.states or part.rank in unknown or part.state != "silent"
        )


def key_of(operation: OperationState, rank: int) -> Key:
    """Return the identity of an operation: equal on the ranks that take part in it."""
    if operation.kind in ("send", "recv"):
        ends = (rank, operation.peer) if operation.kind == "send" else (operation.peer, rank)
        return "message", operation.group, *ends, operation.tag, operation.sequence
    internal, tag = operation.internal, operation.tag
    return "collective", operation.group, internal, tag, operation.sequence


def raised(evidence: Evidence, kind: str = "exception") -> list[Raised]:
    """Return the exceptions of all ranks, the earliest first."""
    found = [
        Raised(rank, event)
        for rank, each in evidence.ranks.items()
        for event in each.events
        if event.kind == kind and event.errors
    ]
    return sorted(found, key=lambda each: (each.event.time_ns, each.rank))


def failed(evidence: Evidence, *errors: str) -> list[Failed]:
    """Return the operations of all ranks that failed with one of these errors, rank by rank."""
    return [
        Failed(rank, event, operation)
        for rank, each in evidence.ranks.items()
        for event in each.events
        for operation in event.failed
        if operation.error in errors
    ]


def shared(evidence: Evidence, key: Key) -> Shared:
    """Return one operation as all ranks saw it last; operations that were refused do not count."""
    found = Shared(key)
    for rank, each in evidence.ranks.items():
        for event, operation in _operations(each):
            if key_of(operation, rank) == key and not operation.refused:
                found.states[rank] = event, operation
    return found


def _operations(rank: RankEvidence) -> Iterator[tuple[Event, OperationState]]:
    for event in rank.events:
        for operation in (*event.waiting, *event.failed):
            yield event, operation
