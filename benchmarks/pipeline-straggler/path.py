"""The critical path of an iteration: the parts of its time, walked back from the last computation.

The stages sleep where they would compute, and each sleep is recorded as a wait. Every wait began
because another wait had ended: the previous wait on its rank, or a wait on a neighbour rank whose
message it needed. The critical path is the sequence of these waits, from the end of the iteration
back to its start. The path accounts for the whole time of the iteration:

    computing   the intended length of the waits, and the links' delays
    waking      waits that ended late because their thread was not woken at once
    turning     from the end of a wait to the start of the next wait on the same rank
    messages    from the end of a wait to the start of the next on another rank, minus the delay

No function here has side effects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slackline.testing.timed_stage import Wait

_LONG_NS = 3_000_000
"""The idle time in ns after which a rank is taken to have waited for a message.

The next wait may not have needed that message: in a fixed order a rank also waits at an instruction
that takes no time, such as the first stage's B.
"""

Place = tuple[int, int]
"""The place of a wait: (rank, number of the wait there)."""


@dataclass(frozen=True, kw_only=True)
class Path:
    """The parts of an iteration's time, which add up to the whole."""

    computing_ns: int
    waking_ns: int
    turning_ns: int
    messages_ns: int
    turns: int
    hops: int
    """The number of messages on the path."""

    @property
    def total_ns(self) -> int:
        return self.computing_ns + self.waking_ns + self.turning_ns + self.messages_ns


def critical_path(
    ranks: Sequence[Sequence[Wait]], start_ns: int, end_ns: int, delays_ns: Mapping[int, int]
) -> Path:
    """Return the critical path of an iteration, divided into its parts.

    `ranks` are the waits of each rank, where stage i is on rank i. `delays_ns` is by link.
    """
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
    """Return the wait that sent the last message to reach `rank` by `until_ns`, or None."""
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
    """Return for each wait the wait on another rank whose message it needed.

    The k-th wait of a kind on a rank belongs to microbatch k. A gradient is needed by the earlier
    one of a microbatch's B and W, which is W in a backward pass of one piece. A gradient is sent
    after B.
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
