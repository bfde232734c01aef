"""Where an iteration's time went: its critical path, walked back from the last wait. Pure.

Every wait began because something had ended: the wait before it on its rank, or one on the rank
next to it, whose message it needed. The path is the chain of these from the end of the iteration to
its begin, and all of the iteration's time lies on it:

    computing   the waits as long as they should be, and the links' delays
    waking      waits that ended late, because their thread was not woken at once
    turning     from the end of a wait to the begin of the next one on the same rank
    messages    from the end of a wait to the begin of one on another rank, less the link's delay
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slackline.testing.timed_stage import Wait

_LONG_NS = 3_000_000
"""A rank that did nothing for so long waited for a message, be it for one that the next wait did
not need: a fixed order stands at an instruction that takes no time, as the first stage's B."""

Place = tuple[int, int]
"""(rank, number of the wait there)."""


@dataclass(frozen=True, kw_only=True)
class Path:
    """The parts of an iteration; they add up to it."""

    computing_ns: int
    waking_ns: int
    turning_ns: int
    messages_ns: int
    turns: int
    hops: int
    """How many messages are on the path."""

    @property
    def total_ns(self) -> int:
        return self.computing_ns + self.waking_ns + self.turning_ns + self.messages_ns


def critical_path(
    ranks: Sequence[Sequence[Wait]], start_ns: int, end_ns: int, delays_ns: Mapping[int, int]
) -> Path:
    """`ranks`: what each rank waited, stage i on rank i; `delays_ns` by link."""
    needs = _needs(ranks)
    place: Place | None = max(
        ((rank, len(waits) - 1) for rank, waits in enumerate(ranks)),
        key=lambda each: ranks[each[0]][each[1]].end_ns,
    )
    computing = waking = messages = turns = hops = 0
    turning = end_ns - _at(ranks, place).end_ns
    while place is not None:
        wait = _at(ranks, place)
        computing += wait.due_ns - wait.start_ns
        waking += wait.end_ns - wait.due_ns
        rank, number = place
        before = (rank, number - 1) if number else None
        since_ns = start_ns if before is None else _at(ranks, before).end_ns
        others = [needs.get(place)]
        if wait.start_ns - since_ns > _LONG_NS:
            others.append(_last_message(ranks, rank, wait.start_ns, delays_ns))
        came = [
            (_at(ranks, other).end_ns + delays_ns.get(min(rank, other[0]), 0), other)
            for other in others
            if other is not None
        ]
        came = [each for each in came if each[0] > since_ns]
        if came:
            arrived_ns, place = came[0]
            messages += wait.start_ns - arrived_ns
            computing += arrived_ns - _at(ranks, place).end_ns
            hops += 1
            continue
        turning += wait.start_ns - since_ns
        turns += 1
        place = before
    return Path(
        computing_ns=computing,
        waking_ns=waking,
        turning_ns=turning,
        messages_ns=messages,
        turns=turns,
        hops=hops,
    )


def _at(ranks: Sequence[Sequence[Wait]], place: Place | None) -> Wait:
    assert place is not None
    return ranks[place[0]][place[1]]


def _last_message(
    ranks: Sequence[Sequence[Wait]], rank: int, until_ns: int, delays_ns: Mapping[int, int]
) -> Place | None:
    """What sent the last message that came to `rank` by then."""
    found: tuple[int, Place] | None = None
    for other, kind in ((rank - 1, "F"), (rank + 1, "B")):
        if not 0 <= other < len(ranks):
            continue
        delay = delays_ns.get(min(rank, other), 0)
        for number, wait in enumerate(ranks[other]):
            arrived = wait.end_ns + delay
            if wait.kind == kind and arrived <= until_ns and (found is None or found[0] < arrived):
                found = (arrived, (other, number))
    return None if found is None else found[1]


def _needs(ranks: Sequence[Sequence[Wait]]) -> dict[Place, Place]:
    """For each wait the one on another rank whose message it needed.

    The k-th wait of a kind on a rank is microbatch k's. A gradient is needed by whichever of a
    microbatch's B and W comes first: W does in a backward pass of one piece. It leaves after B.
    """
    places: dict[tuple[int, str, int], Place] = {}
    for rank, waits in enumerate(ranks):
        counts = dict.fromkeys("FBW", 0)
        for number, wait in enumerate(waits):
            places[rank, wait.kind, counts[wait.kind]] = (rank, number)
            counts[wait.kind] += 1
    needs = {}
    for (rank, kind, microbatch), place in places.items():
        if kind == "F" and rank > 0:
            needs[place] = places[rank - 1, "F", microbatch]
        elif kind == "B" and rank < len(ranks) - 1:
            weight = places.get((rank, "W", microbatch), place)
            needs[min(place, weight)] = places[rank + 1, "B", microbatch]
    return needs
