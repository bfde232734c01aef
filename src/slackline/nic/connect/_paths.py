"""The paths between two ranks: pairs of their NICs, found by subnet first and by trial second.

Both ends of a link derive the same list of rails from the same two endpoint descriptors, so the
index of a rail needs no negotiation:

    caller                  listener
    eth0 10.0.0.1/24 ------ eth0 10.0.0.2/24        rail 0  tcp    by subnet
    eth1 10.0.1.1/24 ------ eth1 10.0.2.1/24        rail 1  tcp    by trial
    lo   127.0.0.1/8        lo   127.0.0.1/8        only between ranks of one host

A NIC may have several addresses. Two NICs get one path, whatever number of addresses they have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count

from slackline._lazy import record
from slackline.errors import LinkError
from slackline.nic.connect._addresses import Interface

__all__ = [
    "Attempt",
    "LongPacketsLostError",
    "LongestPassed",
    "Path",
    "RailPlan",
    "adopted",
    "extend_rails",
    "pair_of",
    "plan_rails",
    "why_no_path",
]

_NEAR_ONLY = "none but loopback"
_MOST_TRIALS = 16


@record(frozen=True, kw_only=True)
class Attempt:
    """A connection attempt to make, from an address of this host to a listener."""

    address: str
    """The listener's address, or the name of its host."""
    port: int
    source: str = ""
    """The address to connect from; empty lets the system choose."""
    scope: int = 0
    """The number of this host's device that a link-local IPv6 address belongs to; 0 for others."""
    device: int = 0
    """The number of the device that the packets must take; 0 leaves the choice to the routes."""
    spare: bool = False
    """Whether to try only while the link has no rail."""


@record(frozen=True, kw_only=True)
class Path:
    """A path from a NIC of the caller to a NIC of the listener, or a search for one."""

    there: tuple[Attempt, ...]
    """The connection attempts of the caller, in order; the first that succeeds is the path."""
    back: tuple[Attempt, ...]
    """The connection attempts of the listener to the caller's own listener, for liveness checks."""
    caller_nic: int
    """The number of the caller's NIC, in the order of its addresses."""
    listener_nic: int
    """The number of the listener's NIC; in a search, of the first NIC that is tried."""
    key: str
    """The two NICs as "eth0>eth1"; in a search "eth0>*"."""
    trial: bool
    """Whether the path is a search: no subnet promises that there is a path."""
    answers_from: int = 0
    """The number of the listener's device that connections of this path should be answered from,
    where the listener has several devices in one subnet; 0 leaves the choice to the routes."""


@record(frozen=True, kw_only=True)
class RailPlan:
    """A planned rail: its index at both ends, its kind and its path."""

    index: int
    kind: str
    """The kind of rail: "shm", "tcp" or "udp"."""
    copy: int = 0
    """The number of the rail among the rails of one kind over one path."""
    path: Path | None = None
    """The path; None for shared memory."""

    @property
    def name(self) -> str:
        """The rail's name in messages, for example "tcp 10.0.0.1>10.0.0.2"."""
        if self.path is None:
            return "shared memory"
        if not self.path.there:
            return f"{self.kind} {self.path.key}"
        first = self.path.there[0]
        return f"{self.kind} {first.source or 'any'}>{first.address}"

    @property
    def trial(self) -> bool:
        """Whether the rail exists only if a search finds a path."""
        return self.path is not None and self.path.trial

    @property
    def key(self) -> tuple[str, int, str]:
        """A name of the rail that stays the same when addresses change."""
        return self.kind, self.copy, "" if self.path is None else self.path.key


@record(frozen=True, kw_only=True)
class LongestPassed:
    """The lengths of two IP packets in bytes, of which one has arrived and the other has not."""

    arrived: int
    vanished: int


class LongPacketsLostError(LinkError):
    """Short packets pass from one address to another, and long ones vanish."""

    def __init__(self, ends: tuple[str, str], passed: LongestPassed) -> None:
        """Make the error for packets from the first of `ends` to the second."""
        self.ends, self.passed = ends, passed
        super().__init__(
            f"packets of up to {passed.arrived} bytes from {ends[0]} to {ends[1]} arrive, and "
            f"packets of {passed.vanished} bytes vanish without an answer"
        )


def plan_rails(
    caller: Sequence[Interface],
    listener: Sequence[Interface],
    *,
    one_host: bool,
    chosen: bool,
    kinds: Sequence[str],
    connections: int,
) -> tuple[RailPlan, ...]:
    """Return the rails between two ranks: `connections` of each kind over each path.

    In each subnet, the caller's i-th NIC is paired with the listener's i-th; if one end has fewer,
    its NICs are used in turn. No two paths have the same two NICs, and NICs that have a path get no
    second one through another subnet. A search follows for each NIC of the caller that has no path
    yet, among the NICs of the listener that have none. An address that both hosts have, such as a
    local bridge's, is on no path. Tunnels are used where nothing else leads to the
    peer. Ranks of one host use only the loopback device, unless either user has `chosen`
    interfaces. The result is empty if no address of one rank can be tried from the other.
    """
    sides = _sides(caller, listener, one_host=one_host, near=one_host and not chosen)
    cables = _Side(*(tuple(i for i in side if not i.overlay) for side in sides))
    sure = list(_by_subnet(cables)) or list(_by_subnet(sides))
    used = {x.nic for x, _, _ in sure}, {y.nic for _, y, _ in sure}
    pairs = [_pair(caller, listener, sides, *each) for each in sure]
    left = _Side(*(tuple(i for i in s if i.nic not in u) for s, u in zip(sides, used, strict=True)))
    searches = list(_by_trial(caller, listener, left, alone=not sure))
    index = count()
    return tuple(
        RailPlan(index=next(index), kind=kind, copy=copy, path=path)
        for paths in (pairs, searches)
        for copy in range(connections)
        for kind in kinds
        for path in paths
    )


def extend_rails(known: Iterable[RailPlan], planned: Iterable[RailPlan]) -> tuple[RailPlan, ...]:
    """Return the rails of `planned`; a rail that is also in `known` has its index from there.

    All other rails get indexes that no rail of `known` has.
    """
    indexes = {plan.key: plan.index for plan in known}
    free = count(max(indexes.values(), default=-1) + 1)
    return tuple(
        replace(plan, index=indexes[plan.key] if plan.key in indexes else next(free))
        for plan in planned
    )


def adopted(
    index: int,
    kind: str,
    caller: Sequence[Interface],
    listener: Sequence[Interface],
    ends: tuple[str, str],
) -> RailPlan:
    """Return the plan of a rail that the caller has found by itself.

    `ends` are the addresses of the connection, the caller's and the listener's, without a scope.
    """
    x, y = _held(caller, ends[0]), _held(listener, ends[1])
    path = Path(
        there=(),
        back=() if x is None else (_attempt(y, x),),
        caller_nic=0 if x is None else _number(caller, x),
        listener_nic=0 if y is None else _number(listener, y),
        key=pair_of(caller, listener, ends),
        trial=True,
    )
    return RailPlan(index=index, kind=kind, path=path)


def pair_of(
    caller: Sequence[Interface], listener: Sequence[Interface], ends: tuple[str, str]
) -> str:
    """Return the NICs of a connection between two addresses, as "eth0>eth1"."""
    x, y = _held(caller, ends[0]), _held(listener, ends[1])
    return f"{ends[0] if x is None else x.nic}>{ends[1] if y is None else y.nic}"


def _held(interfaces: Iterable[Interface], address: str) -> Interface | None:
    """Return the interface with an address; None without one."""
    return next((each for each in interfaces if each.address == address), None)


def why_no_path(mine: Sequence[Interface], theirs: Sequence[Interface]) -> str:
    """Return the reason why no rail can be planned from `mine` to `theirs`, for an error."""

    def told(interfaces: Sequence[Interface]) -> str:
        outside = [each.address for each in interfaces if not each.is_loopback]
        return ", ".join(outside) or _NEAR_ONLY

    addresses = f"this rank's addresses: {told(mine)}; the other's: {told(theirs)}"
    advice = (
        "; ranks that `slackline run` starts on one host listen at loopback alone, unless "
        "SLACKLINE_LISTEN=all is set"
        if _NEAR_ONLY in addresses
        else ""
    )
    return (
        "no address of one can be reached from the other, by family and by subnet; "
        f"{addresses}{advice}"
    )


@record(frozen=True)
class _Side:
    """The usable addresses of both ends, or of their NICs that still have no path."""

    caller: tuple[Interface, ...]
    listener: tuple[Interface, ...]

    def __iter__(self) -> Iterator[tuple[Interface, ...]]:
        return iter((self.caller, self.listener))


def _sides(
    caller: Sequence[Interface], listener: Sequence[Interface], *, one_host: bool, near: bool
) -> _Side:
    """Return the addresses of each end that may lead to the other end."""
    if one_host:
        ends = [tuple(i for i in each if i.is_loopback or not near) for each in (caller, listener)]
        return _Side(*ends)
    both = {i.address for i in caller} & {i.address for i in listener}

    def outward(interfaces: Sequence[Interface]) -> tuple[Interface, ...]:
        shared = {i.nic for i in interfaces if i.address in both and not i.is_link_local}
        own = {i.nic for i in interfaces if i.address not in both and not i.is_link_local}
        return tuple(
            i
            for i in interfaces
            if not (i.is_loopback or i.address in both or i.nic in shared - own)
        )

    return _Side(outward(caller), outward(listener))


def _by_subnet(sides: _Side) -> Iterator[tuple[Interface, Interface, bool]]:
    """Yield the pairs of NICs that share a subnet, and whether the subnet is ambiguous.

    In an ambiguous subnet one end has several NICs, so the routes alone do not tell which NIC a
    packet takes.
    """
    used: tuple[set[str], set[str]] = set(), set()
    here, there = ({i.subnet for i in each if not i.is_link_local} for each in sides)
    for subnet in sorted(here & there, key=lambda s: (s.version, int(s[0]), s.prefixlen)):
        a, b = (_one_of_each(i for i in each if i.subnet == subnet) for each in sides)
        for i in range(max(len(a), len(b))):
            x, y = a[i % len(a)], b[i % len(b)]
            if x.nic in used[0] and y.nic in used[1]:
                continue
            used[0].add(x.nic)
            used[1].add(y.nic)
            yield x, y, max(len(a), len(b)) > 1


def _pair(
    caller: Sequence[Interface],
    listener: Sequence[Interface],
    sides: _Side,
    x: Interface,
    y: Interface,
    several: bool,
) -> Path:
    """Return the path between two NICs: from x to y first, over their other addresses second."""
    first = [(x, y)]
    first += [
        (a, b)
        for a in sides.caller
        for b in sides.listener
        if (a.nic, b.nic) == (x.nic, y.nic) and _fit(a, b) and (a, b) != (x, y)
    ]
    there = []
    for a, b in first:
        if several and a.index and not a.scope:
            there.append(_attempt(a, b, device=a.index))
        there.append(_attempt(a, b))
    return Path(
        there=tuple(there),
        back=tuple(_attempt(b, a) for a, b in first),
        caller_nic=_number(caller, x),
        listener_nic=_number(listener, y),
        key=f"{x.nic}>{y.nic}",
        trial=False,
        answers_from=y.index if several else 0,
    )


def _by_trial(
    caller: Sequence[Interface], listener: Sequence[Interface], left: _Side, *, alone: bool
) -> Iterator[Path]:
    """Yield a search from each NIC of the caller in `left` to the listener's NICs in `left`.

    Searches begin at different NICs, so that each finds one of its own where all are connected. If
    there is no path by subnet (`alone`), the first search ends with attempts from any NIC.
    """
    theirs = _one_of_each(left.listener)
    for number, mine in enumerate(_one_of_each(left.caller)[:_MOST_TRIALS]):
        turn = number % max(1, len(theirs))
        order = [each.nic for each in (*theirs[turn:], *theirs[:turn])]
        pairs = [
            (a, b)
            for near in (False, True)
            for nic in order
            for b in left.listener
            for a in left.caller
            if a.nic == mine.nic and b.nic == nic and a.is_link_local is near and _trial(a, b)
        ]
        there = [_attempt(a, b, device=a.index, spare=a.overlay or b.overlay) for a, b in pairs]
        if alone and number == 0:
            there += [
                Attempt(address=b.address, port=b.port, spare=True)
                for b in left.listener
                if not b.is_link_local and any(a.ip.version == b.ip.version for a in left.caller)
            ]
        if there:
            yield Path(
                there=tuple(there),
                back=tuple(_attempt(b, a) for a, b in pairs),
                caller_nic=_number(caller, mine),
                listener_nic=_number(listener, theirs[turn]),
                key=f"{mine.nic}>*",
                trial=True,
            )


def _fit(a: Interface, b: Interface) -> bool:
    """Return whether two addresses can reach each other: both link-local, or in one subnet."""
    if a.ip.version != b.ip.version or a.is_link_local is not b.is_link_local:
        return False
    return a.is_link_local or a.subnet == b.subnet


def _trial(a: Interface, b: Interface) -> bool:
    """Return whether a connection between two addresses is worth an attempt."""
    return a.ip.version == b.ip.version and a.is_link_local is b.is_link_local


def _attempt(a: Interface | None, b: Interface, *, device: int = 0, spare: bool = False) -> Attempt:
    """Return the connection attempt from `a` (None: any address) to the listener at `b`."""
    if a is None:
        return Attempt(address=b.address, port=b.port)
    return Attempt(
        address=b.address,
        port=b.port,
        source=a.address,
        scope=a.scope,
        device=device,
        spare=spare,
    )


def _one_of_each(interfaces: Iterable[Interface]) -> list[Interface]:
    """Return the first address of each NIC."""
    found: dict[str, Interface] = {}
    for each in interfaces:
        found.setdefault(each.nic, each)
    return list(found.values())


def _number(interfaces: Sequence[Interface], wanted: Interface) -> int:
    """Return the number of a NIC among the NICs of a host."""
    return list(dict.fromkeys(each.nic for each in interfaces)).index(wanted.nic)
