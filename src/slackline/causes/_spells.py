"""The times in which causes held, and these times merged for each cause."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from slackline.causes._cause import Cause, Kind
from slackline.causes._hosts import Direction
from slackline.history import Finding
from slackline.units import show_time

__all__ = ["Recurrence", "Spell", "recurrences"]


_AFTER_NS = 1_000_000_000
"""The time after the end of a cause within which the end of a disturbance is a part of it."""

_OF_LATE_RANKS = (Kind.NIC, Kind.SWITCH, Kind.HOST, Kind.DEAD)
"""The kinds of causes that make ranks answer or send late."""


@dataclass(slots=True, kw_only=True)
class Spell:
    """A time in which a cause held, from its first evidence to its last."""

    cause: Cause
    """The cause as it was named."""
    named_ns: int
    """The Unix time at which the cause was named."""
    until_ns: int | None = None
    """The Unix time of the last evidence; None while the cause holds."""
    explained_by: str = ""
    """The name of the cause that explains the evidence since `until_ns`; empty if none does."""

    links: set[Direction] = field(default_factory=set)
    """The disturbed directions of links that the cause has explained so far."""

    def explains(self, finding: Finding) -> bool:
        """Return whether the finding is about a link or a rank that was disturbed by the cause."""
        until_ns = finding.time_ns if self.until_ns is None else self.until_ns + _AFTER_NS
        if not self.cause.since_ns <= finding.time_ns <= until_ns:
            return False
        late = self.cause.kind in _OF_LATE_RANKS and finding.rank in self.cause.ranks
        return late or finding.link in self.links

    def as_json(self) -> dict[str, Any]:
        """Return the cause with its times as values of JSON; times are Unix time in nanoseconds."""
        cause = self.cause
        return {
            "kind": cause.kind.value,
            "name": cause.name,
            "ranks": list(cause.ranks),
            "rail": cause.rail,
            "named_ns": self.named_ns,
            "since_ns": cause.since_ns,
            "until_ns": self.until_ns,
            "sentence": cause.sentence,
            "look_at": cause.look_at,
        }

    @property
    def lasted_ns(self) -> int:
        """The time from the first evidence to the last; 0 while the cause holds."""
        return 0 if self.until_ns is None else max(0, self.until_ns - self.cause.since_ns)

    @property
    def ending(self) -> str:
        """The sentence about the end: "NIC 1 of host beta is as usual again after 12.4 s"."""
        name = self.cause.name
        if self.explained_by:
            return f"{name} is no cause of its own: {self.explained_by} explains it"
        state = "writes" if self.cause.kind is Kind.DEAD else "is as usual"
        return f"{name} {state} again after {show_time(self.lasted_ns)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """All spells of one cause."""

    cause: Cause
    """The cause as it was named last."""
    times: int
    """The number of spells."""
    first_ns: int
    """The Unix time of the first evidence."""
    named_ns: int
    """The Unix time at which the cause was named for the first time."""
    until_ns: int | None
    """The Unix time of the last evidence; None if the last spell has not ended."""
    lasted_ns: int
    """The total time of the spells that have ended."""

    @property
    def total(self) -> str:
        """The total time in words: "2.3 s", "2.3 s, then to the end", or "to the end"."""
        lasted = f"{show_time(self.lasted_ns)}"
        if self.until_ns is not None:
            return lasted
        return f"{lasted}, then to the end" if self.times > 1 else "to the end"


def recurrences(spells: Iterable[Spell]) -> list[Recurrence]:
    """Merge the spells of each cause, in the order of their first evidence.

    Spells that another cause explains afterwards are left out.
    """
    grouped: dict[tuple[Kind, str], list[Spell]] = {}
    for spell in spells:
        if not spell.explained_by:
            grouped.setdefault((spell.cause.kind, spell.cause.name), []).append(spell)
    found = [
        Recurrence(
            cause=group[-1].cause,
            times=len(group),
            first_ns=group[0].cause.since_ns,
            named_ns=group[0].named_ns,
            until_ns=group[-1].until_ns,
            lasted_ns=sum(spell.lasted_ns for spell in group),
        )
        for group in grouped.values()
    ]
    return sorted(found, key=lambda each: each.first_ns)
