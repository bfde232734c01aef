"""The paths between two ranks: pairs of their network interfaces, matched by subnet.

Both ends of a link derive the same list of rails from the same two endpoint descriptors, so the
index of a rail needs no negotiation:

    caller                  listener
    eth0 10.0.0.1/24 ------ eth0 10.0.0.2/24        rail 0  tcp
    eth1 10.0.1.1/24 ------ eth1 10.0.1.2/24        rail 1  tcp
    lo   127.0.0.1/8        lo   127.0.0.1/8        only between ranks of one host
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from fcntl import ioctl
from itertools import count

from slackline.errors import UsageError

__all__ = ["Interface", "RailPlan", "local_interfaces", "parse_address", "plan_rails", "way_back"]

_SIOCGIFFLAGS = 0x8913
_SIOCGIFADDR = 0x8915
_SIOCGIFNETMASK = 0x891B
_UP_AND_RUNNING = 0x1 | 0x40
_ANY_ADDRESS = ""
_LAST_PORT = 65535


@dataclass(frozen=True, kw_only=True)
class Interface:
    """A network interface of a host, with the port that the engine listens on."""

    name: str
    address: str
    """The IPv4 address."""
    prefix: int
    """The prefix length of the subnet in bits."""
    port: int = 0
    """The TCP port at which the engine listens on this address; 0 before it listens."""

    @property
    def subnet(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Network((self.address, self.prefix), strict=False)

    @property
    def is_loopback(self) -> bool:
        return ipaddress.IPv4Address(self.address).is_loopback


@dataclass(frozen=True, kw_only=True)
class RailPlan:
    """A planned rail: its index at both ends, and the addresses that the caller dials."""

    index: int
    kind: str
    """The kind of rail: "shm", "tcp" or "udp"."""
    source: str
    """The caller's source address; empty lets the system choose."""
    targets: tuple[tuple[str, int], ...]
    """The addresses and ports of the listener, in the order of attempts."""
    caller_nic: int
    """The index of the caller's interface."""
    listener_nic: int

    @property
    def name(self) -> str:
        """The rail's name in messages, for example "tcp 10.0.0.1>10.0.0.2"."""
        if not self.targets:
            return "shared memory"
        return f"{self.kind} {self.source or 'any'}>{self.targets[0][0]}"


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

    In each subnet, the caller's i-th interface is paired with the listener's i-th; if one end has
    fewer, its interfaces are used in turn. An address that both hosts have is no path between them,
    for example that of a local bridge. Ranks of one host use only the loopback interface, unless
    either user has `chosen` interfaces. Without a common subnet there is one path: from a source
    that the system chooses to the first of the listener's addresses that answers.
    """
    paths: list[tuple[str, tuple[tuple[str, int], ...], int, int]] = [
        (a.address, ((b.address, b.port),), caller.index(a), listener.index(b))
        for a, b in _pairs(caller, listener, one_host=one_host, chosen=chosen)
    ]
    if not paths:
        paths = [(_ANY_ADDRESS, _everywhere(listener, one_host=one_host), 0, 0)]
    index = count()
    return tuple(
        RailPlan(
            index=next(index),
            kind=kind,
            source=source,
            targets=targets,
            caller_nic=mine,
            listener_nic=theirs,
        )
        for _ in range(connections)
        for kind in kinds
        for source, targets, mine, theirs in paths
    )


def way_back(
    plan: RailPlan, caller: Sequence[Interface], listener: Sequence[Interface], *, one_host: bool
) -> tuple[str, tuple[tuple[str, int], ...]]:
    """Return source and targets of the path from the listener back to the caller's listener."""
    if plan.source == _ANY_ADDRESS:
        return _ANY_ADDRESS, _everywhere(caller, one_host=one_host)
    there = caller[plan.caller_nic]
    return listener[plan.listener_nic].address, ((there.address, there.port),)


def _everywhere(interfaces: Sequence[Interface], *, one_host: bool) -> tuple[tuple[str, int], ...]:
    """Return all addresses of a rank that may be reachable, loopback last."""
    there = [i for i in interfaces if one_host or not i.is_loopback] or interfaces
    return tuple((i.address, i.port) for i in sorted(there, key=lambda i: i.is_loopback))


def _pairs(
    caller: Sequence[Interface], listener: Sequence[Interface], *, one_host: bool, chosen: bool
) -> list[tuple[Interface, Interface]]:
    """Return the pairs of interfaces that share a subnet and can reach each other."""
    near = one_host and not chosen

    def usable(interfaces: Sequence[Interface]) -> list[Interface]:
        return [i for i in interfaces if (i.is_loopback if near else one_host or not i.is_loopback)]

    pairs = []
    mine, theirs = usable(caller), usable(listener)
    for subnet in sorted({i.subnet for i in mine} & {i.subnet for i in theirs}):
        a = [i for i in mine if i.subnet == subnet]
        b = [i for i in theirs if i.subnet == subnet]
        pairs += [
            (a[i % len(a)], b[i % len(b)])
            for i in range(max(len(a), len(b)))
            if one_host or a[i % len(a)].address != b[i % len(b)].address
        ]
    return pairs


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of a text like "10.0.0.9:7000"; raise UsageError for any other."""
    host, colon, port = text.rpartition(":")
    if not host or not colon or not (port.isascii() and port.isdigit()) or int(port) > _LAST_PORT:
        raise UsageError(f"an address must be like 10.0.0.9:7000, not {text!r}")
    return host, int(port)


def local_interfaces(wanted: Sequence[str]) -> tuple[Interface, ...]:
    """Return the interfaces of this host that peers may use.

    `wanted` lists names, or addresses with a prefix length ("10.0.0.1/24") where an interface has
    several. An empty list takes all interfaces that are up and have an IPv4 address, loopback last.
    Raises UsageError that names a missing interface.
    """
    if not wanted:
        found = [i for i in _system_interfaces() if _is_up(i.name)]
        return tuple(sorted(found, key=lambda interface: interface.is_loopback))
    known = {interface.name: interface for interface in _system_interfaces()}
    chosen = []
    for word in wanted:
        if "/" in word:
            chosen.append(_by_address(word))
        elif word in known:
            chosen.append(known[word])
        else:
            names = ", ".join(sorted(known)) or "none"
            raise UsageError(f"interface {word!r} has no IPv4 address; those that have: {names}")
    return tuple(chosen)


def _by_address(word: str) -> Interface:
    try:
        given = ipaddress.IPv4Interface(word)
    except ValueError as error:
        raise UsageError(
            f"an interface must be a name or an IPv4 address with its prefix length, "
            f"as 10.0.0.1/24, not {word!r}"
        ) from error
    address = str(given.ip)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            raise UsageError(f"{address} is not an address of this host: {error}") from error
    return Interface(name=word, address=address, prefix=given.network.prefixlen)


def _system_interfaces() -> list[Interface]:
    found = []
    for _, name in socket.if_nameindex():
        address, mask = _ask(_SIOCGIFADDR, name), _ask(_SIOCGIFNETMASK, name)
        if address is None or mask is None:
            continue  # The interface has no IPv4 address.
        prefix = int.from_bytes(mask[4:8], "big").bit_count()
        found.append(Interface(name=name, address=socket.inet_ntoa(address[4:8]), prefix=prefix))
    return found


def _is_up(name: str) -> bool:
    flags = _ask(_SIOCGIFFLAGS, name)
    return flags is not None and (
        int.from_bytes(flags[:2], "little") & _UP_AND_RUNNING == _UP_AND_RUNNING
    )


def _ask(request: int, name: str) -> bytes | None:
    """Return the ioctl's answer about an interface, after its name; None on an error."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            return ioctl(probe.fileno(), request, struct.pack("256s", name.encode()[:15]))[16:]
        except OSError:
            return None
