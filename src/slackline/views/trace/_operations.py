"""Operations of the ranks' engines as slices, with waits and arrows from the rank that was late.

    rank 0, operations   [ all_reduce                                ]
            waits             [ wait for all_reduce                  ]
                              [ rank 1 has not posted ][ transfer    ]
                                                       ^
    rank 1, operations                                [ all_reduce   ]

An operation's slice lasts from its post to its end. A wait ends with the operation and lasts as
long as the record states; if a thread waited several times, its slice is their sum.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import count
from typing import NamedTuple

from slackline.history import Alignment
from slackline.plan.collective import Collective
from slackline.records import GroupOpened, Operation
from slackline.views.trace._events import Event, Lanes, Slice, Track, Value
from slackline.views.trace._window import Family, Window

__all__ = ["MOST_HELD", "OperationEvents", "check", "family_of", "plan_of"]

MOST_HELD = 1 << 16
"""The number of operations that are held until the other ranks' records of them have come."""

_SYNCHRONIZING = {
    Collective.ALL_REDUCE,
    Collective.REDUCE_SCATTER,
    Collective.ALL_GATHER,
    Collective.ALL_TO_ALL,
    Collective.BARRIER,
    Collective.POINT_TO_POINT,
}
"""Collectives that end on no rank before every rank has posted them, and messages, of which only a
short send may end before its receive is posted."""


class _Placed(NamedTuple):
    """An operation of one rank by the reference clock."""

    rank: int
    operation: Operation
    posted_ns: int
    ended_ns: int
    error_ns: int

    @property
    def wait_ns(self) -> int:
        """The time at which the wait began."""
        return max(self.posted_ns, self.ended_ns - self.operation.waited_ns)


class OperationEvents:
    """The slices of all ranks' operations and waits, and the arrows between them."""

    def __init__(self, alignment: Alignment, flows: "count[int]") -> None:
        """Convert times by `alignment`; take the numbers of arrows from `flows`."""
        self._alignment = alignment
        self._flows = flows
        self._groups: dict[int, GroupOpened] = {}
        self._numbers: dict[int, int] = {}
        self._lanes = Lanes()
        self._window = Window[_Placed](MOST_HELD)
        self.count = 0
        """The number of operations so far."""
        self.arrows = 0
        """The number of arrows so far."""
        self.alone = 0
        """The operations that lack the record of another rank, and therefore arrows."""
        self.contradictions = 0
        """The families in which an operation ended before another rank had posted it."""

    def open(self, group: GroupOpened) -> None:
        """Take the members of a group."""
        self._groups.setdefault(group.epoch, group)
        self._numbers.setdefault(group.epoch, len(self._numbers))

    def take(self, rank: int, operation: Operation) -> Iterator[Event]:
        """Yield the events of the operations that have become complete with this one.

        Raises ValueError for an operation of an unknown kind.
        """
        check(operation)
        self.count += 1
        unix_ns = self._alignment.unix_ns
        placed = _Placed(
            rank,
            operation,
            unix_ns(rank, operation.posted_ns),
            unix_ns(rank, operation.ended_ns),
            self._alignment.error_ns(rank, operation.ended_ns),
        )
        group = self._groups.get(operation.group)
        family = None if group is None else family_of(rank, operation, group)
        if family is None:
            yield from self._draw(Family({rank: placed}, complete=False))
            return
        name, ranks = family
        for each in self._window.add(name, rank, placed, ranks):
            yield from self._draw(each)

    def finish(self) -> Iterator[Event]:
        """Yield the events of the operations that have remained incomplete."""
        for each in self._window.finish():
            yield from self._draw(each)

    def _draw(self, family: Family[_Placed]) -> Iterator[Event]:
        """Yield the slices of one collective or message, the last rank to post first."""
        placed = sorted(family.members.values(), key=lambda each: each.posted_ns, reverse=True)
        last = self._last(placed) if family.complete else None
        if not family.complete:
            self.alone += len(placed)
        arrows = {
            each.rank: next(self._flows)
            for each in placed
            if last is not None and _waited_for(each, last)
        }
        self.arrows += len(arrows)
        for each in placed:
            out = tuple(arrows.values()) if each is last else ()
            yield self._slice(each, out)
        for each in placed:
            if each.operation.waited_ns:
                yield from self._wait(each, last, arrows.get(each.rank))

    def _last(self, placed: Sequence[_Placed]) -> _Placed | None:
        """Return the operation that was posted last, if the others may have waited for it.

        `placed` begins with the operation that was posted last.
        """
        last, first = placed[0], min(placed, key=lambda each: each.ended_ns)
        if Collective(last.operation.collective) not in _SYNCHRONIZING:
            return None
        if any(each.operation.failed for each in placed):
            return None
        if last.operation.collective == Collective.POINT_TO_POINT:
            return last
        if first.ended_ns + first.error_ns + last.error_ns < last.posted_ns:
            self.contradictions += 1
            return None
        return last

    def _slice(self, placed: _Placed, flows_out: tuple[int, ...]) -> Event:
        operation = placed.operation
        name = self._label(operation)
        if operation.collective == Collective.POINT_TO_POINT:
            name += ", messages"
        return Slice(
            track=self._lanes.track(placed.rank, name, placed.posted_ns, placed.ended_ns),
            name=operation.kind,
            category="operation",
            begin_ns=placed.posted_ns,
            end_ns=placed.ended_ns,
            arguments=_arguments(operation, self._groups.get(operation.group)),
            flows_out=flows_out,
        )

    def _wait(self, placed: _Placed, last: _Placed | None, flow: int | None) -> Iterator[Event]:
        """Yield the slice of a wait; with an arrow, also its parts before and after the post."""
        track = self._lanes.track(
            placed.rank,
            f"waits, {self._label(placed.operation)}",
            placed.wait_ns,
            placed.ended_ns,
        )
        yield _wait(
            track,
            f"wait for {placed.operation.kind}",
            placed.wait_ns,
            placed.ended_ns,
            {
                "bytes": placed.operation.bytes,
                "sequence": placed.operation.sequence,
                "waited_ns": placed.operation.waited_ns,
            },
        )
        if last is not None and flow is not None:
            name = f"rank {last.rank} has not posted"
            yield _wait(track, name, placed.wait_ns, last.posted_ns, {"rank": last.rank})
            yield _wait(track, "transfer", last.posted_ns, placed.ended_ns, {}, (flow,))

    def _label(self, operation: Operation) -> str:
        """Return the name of an operation's group: "group 0 (ranks 0-3)"."""
        group = self._groups.get(operation.group)
        if group is None:
            return f"group {operation.group}"
        return f"group {self._numbers[operation.group]} (ranks {_ranges(group.members)})"


def family_of(
    rank: int, operation: Operation, group: GroupOpened
) -> tuple[tuple[int | str, ...], tuple[int, ...]] | None:
    """Return the name that an operation has on all of its ranks, and these ranks in the job.

    Returns None for the receive of a message that was never answered, and for ranks that the record
    of the group does not have.
    """
    if operation.collective != Collective.POINT_TO_POINT:
        # A collective's sequence number counts among those of the same tag and internal use.
        kind = Collective(operation.collective).label
        members = tuple(group.members)
        same = (group.epoch, kind, operation.internal, operation.tag, operation.sequence)
        return (same, members) if rank in members else None
    if not 0 <= operation.peer < len(group.members):
        return None
    peer = group.members[operation.peer]
    source, target = (peer, rank) if operation.receives else (rank, peer)
    message = (group.epoch, "message", operation.tag, operation.sequence, source, target)
    return message, (source, target)


def check(operation: Operation) -> None:
    """Raise ValueError that names the collective or the plan if it is not known."""
    label = Collective(operation.collective).label
    try:
        plan_of(operation.collective, operation.plan)
    except IndexError:
        raise ValueError(f"{operation.plan} is not the number of a plan of {label}") from None


@cache
def plan_of(collective: int, plan: int) -> str:
    """Return the name of the plan with this number in frame headers; empty for none."""
    empty = Operation(collective, 0, -1, 0, 0, 0, -1, 0, 0, plan, 0, 0, 0, 0, 0, 0)
    return empty.plan_name


def _waited_for(waiting: _Placed, last: _Placed) -> bool:
    """Return whether a thread was certainly blocked before the last rank had posted."""
    error_ns = waiting.error_ns + last.error_ns
    return waiting.wait_ns + error_ns < last.posted_ns <= waiting.ended_ns


def _wait(
    track: Track,
    name: str,
    begin_ns: int,
    end_ns: int,
    arguments: Mapping[str, Value],
    flows_in: tuple[int, ...] = (),
) -> Slice:
    return Slice(
        track=track,
        name=name,
        category="wait",
        begin_ns=begin_ns,
        end_ns=end_ns,
        arguments=arguments,
        flows_in=flows_in,
    )


def _arguments(operation: Operation, group: GroupOpened | None) -> dict[str, Value]:
    """Return the facts of an operation that a viewer shows."""
    found: dict[str, Value] = {
        "bytes": operation.bytes,
        "sequence": operation.sequence,
        "group": operation.group,
    }
    if operation.tag >= 0:
        found["tag"] = operation.tag
    if plan := plan_of(operation.collective, operation.plan):
        found["plan"] = plan
    if operation.rails:
        found["rails"] = ", ".join(operation.rail_names)
    if group is not None and 0 <= operation.peer < len(group.members):
        found["peer"] = group.members[operation.peer]
    if operation.started_ns:
        found["queued_ns"] = operation.started_ns - operation.posted_ns
    if operation.internal:
        found["internal"] = operation.internal
    if operation.failed:
        found["failed"] = operation.failed
    return found


def _ranges(ranks: Iterable[int]) -> str:
    """Return ranks as text, with a range for ranks in a row: "0-3", "0, 2, 5-7"."""
    runs: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][1] == rank - 1:
            runs[-1] = runs[-1][0], rank
        else:
            runs.append((rank, rank))
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
