"""A plan of several faults over time: the faults active at a moment, and the next change."""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Self

from slackline.errors import UsageError
from slackline.faults._grammar import parse
from slackline.faults._model import (
    ACTIONS,
    NOTHING,
    Action,
    Effects,
    Fault,
    LinkFault,
    NicFault,
    RankFault,
)
from slackline.faults._network import NetworkState

__all__ = ["Plan", "RankState", "parse_all"]


@dataclass(frozen=True, kw_only=True)
class RankState:
    """The state of a rank under faults: killed, stopped or slow."""

    action: Action
    factor: float = 1.0
    """The factor by which the rank is slower, for the action "slow"."""


@dataclass(frozen=True)
class Plan:
    """A set of faults with their times; the executor of the plan supplies the clock.

    Times are nanoseconds from the executor's time zero.
    """

    faults: tuple[Fault, ...] = ()

    def pairs(self, now_ns: int) -> dict[tuple[int, int], Effects]:
        """Return the effects of link faults by (from host, to host), which apply to every NIC."""
        found: dict[tuple[int, int], Effects] = {}
        for fault in self.faults:
            if isinstance(fault, LinkFault) and fault.active(now_ns):
                directions = [(fault.source, fault.target)]
                directions += [(fault.target, fault.source)] if fault.both else []
                for direction in directions:
                    found[direction] = found.get(direction, NOTHING) | fault.effects
        return found

    def nics(self, now_ns: int) -> dict[tuple[int, int], Effects]:
        """Return the effects of NIC faults by (host, NIC), which apply in both directions."""
        found: dict[tuple[int, int], Effects] = {}
        for fault in self.faults:
            if isinstance(fault, NicFault) and fault.active(now_ns):
                effects = fault.effects_at(now_ns)
                if effects != NOTHING:
                    key = (fault.host, fault.nic)
                    found[key] = found.get(key, NOTHING) | effects
        return found

    def network(self, now_ns: int) -> NetworkState:
        """Return the effects of all link and NIC faults."""
        return NetworkState(pairs=self.pairs(now_ns), nics=self.nics(now_ns))

    def links(self, now_ns: int, hosts: int, nics: int) -> dict[tuple[int, int, int], Effects]:
        """Return the effects on each path that has a fault; see NetworkState.paths."""
        return self.network(now_ns).paths(hosts, nics)

    def ranks(self, now_ns: int) -> dict[int, RankState]:
        """Return the state of each rank that has a fault; of several faults the worst one counts.

        The factors of several "slow" faults multiply.
        """
        found: dict[int, RankState] = {}
        for fault in self.faults:
            if isinstance(fault, RankFault) and fault.active(now_ns):
                before = found.get(fault.rank)
                now = RankState(action=fault.action, factor=fault.factor)
                found[fault.rank] = now if before is None else _worse(before, now)
        return found

    def changes(self) -> Iterator[int]:
        """Yield the times at which any fault changes, each once, in order.

        A flapping NIC that has no end makes the sequence endless.
        """
        last = None
        for at_ns in heapq.merge(*(fault.changes() for fault in self.faults)):
            if at_ns != last:
                yield at_ns
            last = at_ns

    def next_change(self, now_ns: int) -> int | None:
        """Return the first time after `now_ns` at which any fault changes; None if none will."""
        nexts = (fault.next_change(now_ns) for fault in self.faults)
        return min((at_ns for at_ns in nexts if at_ns is not None), default=None)

    def skipped(self, before_ns: int, now_ns: int) -> tuple[Fault, ...]:
        """Return the faults that start after `before_ns` and are over by `now_ns`.

        An executor that looks at the plan at these two times, and not between them, leaves these
        faults out. The fault "kill" is never among them, since a rank stays dead.
        """
        return tuple(
            fault
            for fault in self.faults
            if before_ns < fault.start_ns and fault.start_ns <= now_ns and not fault.active(now_ns)
        )

    @property
    def end_ns(self) -> int | None:
        """The time at which all faults are over; None if some fault never ends."""
        ends = [fault.end_ns for fault in self.faults]
        return None if None in ends else max((end for end in ends if end is not None), default=0)

    @property
    def of_network(self) -> Self:
        """The plan with only the faults of links and NICs."""
        kept = (fault for fault in self.faults if not isinstance(fault, RankFault))
        return replace(self, faults=tuple(kept))

    @property
    def of_ranks(self) -> Self:
        """The plan with only the faults of ranks."""
        return replace(self, faults=tuple(f for f in self.faults if isinstance(f, RankFault)))

    def check(self, hosts: int, nics: int) -> None:
        """Check that all hosts, ranks and NICs exist; otherwise raise UsageError."""
        for fault in self.faults:
            match fault:
                case LinkFault():
                    _exists("host", fault.source, hosts, fault)
                    _exists("host", fault.target, hosts, fault)
                case NicFault():
                    _exists("host", fault.host, hosts, fault)
                    _exists("NIC", fault.nic, nics, fault)
                case RankFault():
                    _exists("rank", fault.rank, hosts, fault)

    def __bool__(self) -> bool:
        return bool(self.faults)

    def __add__(self, other: Self) -> Self:
        return replace(self, faults=self.faults + other.faults)

    def __str__(self) -> str:
        return "; ".join(map(str, self.faults))


def parse_all(texts: str | Iterable[str]) -> Plan:
    """Parse all faults in one or more texts into a plan; semicolons separate faults in a text."""
    given = [texts] if isinstance(texts, str) else texts
    return Plan(tuple(parse(part) for text in given for part in text.split(";") if part.strip()))


def _worse(one: RankState, other: RankState) -> RankState:
    first, second = sorted((one, other), key=lambda state: ACTIONS.index(state.action))
    if first.action != "slow":
        return first
    return RankState(action="slow", factor=first.factor * second.factor)


def _exists(what: str, number: int, count: int, fault: Fault) -> None:
    if number >= count:
        raise UsageError(f"there is no {what} {number} for {str(fault)!r}: there are {count}")
