"""The disturbances of a job's links: one for each rail and condition, however often it came."""

from collections.abc import Iterable
from dataclasses import dataclass

from slackline.detect import Condition, Episode
from slackline.units import show_time

__all__ = ["Disturbance", "disturbances"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """All episodes of one rail of a link with the same condition, in one direction or in both."""

    source: int
    """The sending rank; the lower rank if both directions were affected."""
    target: int
    """The receiving rank."""
    both: bool
    """Whether both directions were affected, at the same time or at different times."""
    rail: int | None
    """The index of the rail; None if the link has one rail only."""
    condition: Condition
    """The condition: slow, losing, silent or cut."""
    times: int
    """The number of times the rail got into the condition; overlapping episodes count as one."""
    first_ns: int
    """The start of the first episode, in nanoseconds from the opening of the group."""
    lasted_ns: int
    """The total time of the episodes that have ended; time of both directions counts once."""
    lasts: bool
    """Whether the last episode has not ended."""
    reason: str
    """The latest sentence about the rail in this condition."""

    @property
    def name(self) -> str:
        """The name of the link: "2>3", "0-1" for both directions, or "0-1, rail 1"."""
        name = f"{self.source}{'-' if self.both else '>'}{self.target}"
        return name if self.rail is None else f"{name}, rail {self.rail}"

    @property
    def total(self) -> str:
        """The total time in words: "2.3 s", "2.3 s, then to the end", or "to the end"."""
        if not self.lasts:
            return show_time(self.lasted_ns)
        return f"{show_time(self.lasted_ns)}, then to the end" if self.times > 1 else "to the end"


def disturbances(
    episodes: Iterable[Episode], rails: Iterable[tuple[int, int, int]] = ()
) -> list[Disturbance]:
    """Merge the episodes of each rail and condition, in the order of their first starts.

    `rails` are further rails that exist, as (rank, peer, index), by which links with several rails
    are recognised.
    """
    grouped: dict[tuple[int, int, int, Condition], list[Episode]] = {}
    known: dict[tuple[int, int], set[int]] = {}
    for rank, peer, rail in rails:
        known.setdefault(_ends(rank, peer), set()).add(rail)
    for each in episodes:
        ends = _ends(each.source, each.target)
        known.setdefault(ends, set()).add(each.rail)
        grouped.setdefault((*ends, each.rail, each.condition), []).append(each)
    found = [
        _merged(group, alone=len(known[low, high]) == 1)
        for (low, high, _, _), group in grouped.items()
    ]
    return sorted(found, key=lambda each: each.first_ns)


def _merged(group: list[Episode], *, alone: bool) -> Disturbance:
    """Merge episodes of one rail and one condition, of which there is at least one."""
    first = group[0]
    both = any(each.source != first.source for each in group)
    source, target = _ends(first.source, first.target) if both else (first.source, first.target)
    spans: list[tuple[int, int | None]] = []
    for since_ns, until_ns in sorted(
        ((each.since_ns, each.until_ns) for each in group), key=lambda span: span[0]
    ):
        before_ns = spans[-1][1] if spans else -1
        if before_ns is None or since_ns <= before_ns:
            ends = before_ns is None or until_ns is None
            spans[-1] = spans[-1][0], None if ends else max(before_ns or 0, until_ns or 0)
        else:
            spans.append((since_ns, until_ns))
    return Disturbance(
        source=source,
        target=target,
        both=both,
        rail=None if alone else first.rail,
        condition=first.condition,
        times=len(spans),
        first_ns=spans[0][0],
        lasted_ns=sum(until_ns - since_ns for since_ns, until_ns in spans if until_ns is not None),
        lasts=spans[-1][1] is None,
        reason=max(group, key=lambda each: each.since_ns).reason,
    )


def _ends(one: int, other: int) -> tuple[int, int]:
    return min(one, other), max(one, other)
