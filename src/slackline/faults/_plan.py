"""Several faults over time: what is wrong now, and when that changes."""

import heapq
from collections.abc import Iterable, Iterator, Mapping
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

__all__ = ["Plan", "RankState", "parse_all"]


@dataclass(frozen=True, kw_only=True)
class RankState:
    """What is done to a rank."""

    action: Action
    factor: float = 1.0
    """How much slower, where the action is slow."""


@dataclass(frozen=True)
class Plan:
    """Faults that are there together. Pure: whoever executes it brings the clock.

    Times are nanoseconds from the executor's start of time.
    """

    faults: tuple[Fault, ...] = ()

    def pairs(self, now_ns: int) -> dict[tuple[int, int], Effects]:
        """What is done between hosts, (from, to), on every NIC: link faults alone."""
        found: dict[tuple[int, int], Effects] = {}
        for fault in self.faults:
            if isinstance(fault, LinkFault) and fault.active(now_ns):
                ways = [(fault.source, fault.target)]
                ways += [(fault.target, fault.source)] if fault.both else []
                for way in ways:
                    found[way] = found.get(way, NOTHING) | fault.effects
        return found

    def nics(self, now_ns: int) -> dict[tuple[int, int], Effects]:
        """What is done to NICs, (host, NIC), in both directions: NIC faults alone."""
        found: dict[tuple[int, int], Effects] = {}
        for fault in self.faults:
            if isinstance(fault, NicFault) and fault.active(now_ns):
                effects = fault.effects_at(now_ns)
                if effects != NOTHING:
                    key = (fault.host, fault.nic)
                    found[key] = found.get(key, NOTHING) | effects
        return found

    def links(self, now_ns: int, hosts: int, nics: int) -> dict[tuple[int, int, int], Effects]:
        """What is done to packets from a host to another through NIC i of both, (from, to, i):
        link and NIC faults in one, for whoever knows links alone. Paths without a fault are absent.
        """
        pairs, ports = self.pairs(now_ns), self.nics(now_ns)
        found = {}
        for source, target, nic in _paths(pairs, ports, hosts, nics):
            effects = pairs.get((source, target), NOTHING)
            effects |= ports.get((source, nic), NOTHING)
            found[source, target, nic] = effects | ports.get((target, nic), NOTHING)
        return found

    def ranks(self, now_ns: int) -> dict[int, RankState]:
        """What is done to ranks: the worst of what there is; slow and slow is slower still."""
        found: dict[int, RankState] = {}
        for fault in self.faults:
            if isinstance(fault, RankFault) and fault.active(now_ns):
                before = found.get(fault.rank)
                now = RankState(action=fault.action, factor=fault.factor)
                found[fault.rank] = now if before is None else _worse(before, now)
        return found

    def changes(self) -> Iterator[int]:
        """The times at which anything changes, each once, in order. A flapping NIC that has no end
        makes it endless.
        """
        last = None
        for at_ns in heapq.merge(*(fault.changes() for fault in self.faults)):
            if at_ns != last:
                yield at_ns
            last = at_ns

    def next_change(self, now_ns: int) -> int | None:
        """The first time after `now_ns` at which anything changes; None when nothing will."""
        nexts = (fault.next_change(now_ns) for fault in self.faults)
        return min((at_ns for at_ns in nexts if at_ns is not None), default=None)

    @property
    def end_ns(self) -> int | None:
        """When all faults are over; None if one never is."""
        ends = [fault.end_ns for fault in self.faults]
        return None if None in ends else max((end for end in ends if end is not None), default=0)

    @property
    def of_network(self) -> Self:
        """The faults of links and NICs."""
        kept = (fault for fault in self.faults if not isinstance(fault, RankFault))
        return replace(self, faults=tuple(kept))

    @property
    def of_ranks(self) -> Self:
        """The faults of ranks."""
        return replace(self, faults=tuple(f for f in self.faults if isinstance(f, RankFault)))

    def check(self, hosts: int, nics: int) -> None:
        """Raises UsageError that names the first host, rank or NIC that is not there."""
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
    """The plan of all the faults in one or more texts; within a text semicolons separate them."""
    given = [texts] if isinstance(texts, str) else texts
    return Plan(tuple(parse(part) for text in given for part in text.split(";") if part.strip()))


def _paths(
    pairs: Mapping[tuple[int, int], Effects],
    ports: Mapping[tuple[int, int], Effects],
    hosts: int,
    nics: int,
) -> set[tuple[int, int, int]]:
    """The paths that any of these touch."""
    found = {(source, target, nic) for source, target in pairs for nic in range(nics)}
    for host, nic in ports:
        for peer in range(hosts):
            if peer != host:
                found |= {(host, peer, nic), (peer, host, nic)}
    return found


def _worse(one: RankState, other: RankState) -> RankState:
    first, second = sorted((one, other), key=lambda state: ACTIONS.index(state.action))
    if first.action != "slow":
        return first
    return RankState(action="slow", factor=first.factor * second.factor)


def _exists(what: str, number: int, count: int, fault: Fault) -> None:
    if number >= count:
        raise UsageError(f"there is no {what} {number} for {str(fault)!r}: there are {count}")
