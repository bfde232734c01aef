"""The addresses of this host: as the kernel tells them, as an engine listens, as users name them.

The network devices and their addresses are read from the Linux kernel by rtnetlink(7).
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from slackline._lazy import record
from slackline.errors import UsageError
from slackline.nic.connect._sockets import closed_in_children

__all__ = [
    "Address",
    "Device",
    "Interface",
    "SocketAddress",
    "devices",
    "family_of",
    "from_rows",
    "local_interfaces",
    "open_monitor",
    "socket_address",
    "still_there",
    "to_rows",
]


_GROUPS = 0x1 | 0x10 | 0x100
"""The multicast groups RTMGRP_LINK, RTMGRP_IPV4_IFADDR and RTMGRP_IPV6_IFADDR."""

_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_RTM_NEWLINK, _RTM_GETLINK, _RTM_NEWADDR, _RTM_GETADDR = 16, 18, 20, 22
_REQUEST_DUMP = 0x1 | 0x300
_DUMP_INTERRUPTED = 0x10
_HEADER = struct.Struct("=IHHII")
_LINK = struct.Struct("=BxHiII")
_ADDRESS = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_TYPE_BITS = 0x3FFF
_IFLA_IFNAME, _IFLA_MTU, _IFLA_LINK, _IFLA_MASTER, _IFLA_LINKINFO = 3, 4, 5, 10, 18
_INFO_KIND = 1
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS = 1, 2, 8
_IFF_UP, _IFF_LOOPBACK, _IFF_RUNNING = 0x1, 0x8, 0x40
_UNUSABLE = 0x08 | 0x20 | 0x40
"""The address flags IFA_F_DADFAILED, IFA_F_DEPRECATED and IFA_F_TENTATIVE."""
_TEMPORARY = 0x01
"""IFA_F_TEMPORARY of an IPv6 address; on an IPv4 address the same bit means "secondary"."""

_CABLES = frozenset({1, 32, 772})
"""The device types ARPHRD_ETHER, ARPHRD_INFINIBAND and ARPHRD_LOOPBACK. Others are tunnels."""
_ENCAPSULATING = frozenset({"vxlan", "geneve", "gretap", "erspan", "ip6gretap", "ip6erspan"})
_ON_ANOTHER = frozenset({"vlan", "macvlan", "ipvlan"})
_REPLY_BYTES = 1 << 17
_TRIES = 10


@record(frozen=True, kw_only=True)
class Address:
    """An IPv4 or IPv6 address of a device, with the length of its subnet's prefix in bits."""

    text: str
    prefix: int


@record(frozen=True, kw_only=True)
class Device:
    """A network device of this host: a NIC, or a virtual device of the kernel."""

    index: int
    """The number of the device in the kernel, which is the scope id of its link-local addresses."""
    name: str
    up: bool
    """Whether the device is up and has a carrier."""
    loopback: bool
    overlay: bool
    """Whether the device is a tunnel, whose packets travel inside another device's packets."""
    master: int
    """The index of the bridge or bond that the device is a port of; 0 for none."""
    lower: int
    """The index of the device below a VLAN or macvlan, which has the cable; 0 for other devices."""
    mtu: int
    """The largest IP packet in bytes."""
    addresses: tuple[Address, ...] = ()
    """The addresses that connections can be made from, in the kernel's order."""


def devices() -> tuple[Device, ...]:
    """Return the network devices of this network namespace, in the order of their index.

    The result omits addresses that duplicate address detection has not confirmed, deprecated
    addresses, and temporary IPv6 addresses. Raises UsageError if the kernel does not answer.
    """
    try:
        found = {each.index: each for each in map(_device, _dump(_RTM_GETLINK, _RTM_NEWLINK))}
        for message in _dump(_RTM_GETADDR, _RTM_NEWADDR):
            index, address = _address(message)
            if address is not None and index in found:
                known = found[index]
                found[index] = replace(known, addresses=(*known.addresses, address))
    except OSError as error:
        raise UsageError(
            f"the kernel does not list this host's network devices: {error}"
        ) from error
    return tuple(found[index] for index in sorted(found))


def open_monitor() -> socket.socket:
    """Return a socket that becomes readable when a device or an address of this host changes.

    The caller owns the non-blocking socket. Raises OSError if the kernel refuses the socket.
    """
    sock = closed_in_children(
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK)
    )
    try:
        sock.bind((0, _GROUPS))
    except BaseException:
        sock.close()
        raise
    return sock


def _dump(request: int, reply: int) -> list[bytes]:
    """Return the bodies of the messages of type `reply` that answer a dump request."""
    for _ in range(_TRIES):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW) as sock:
            sock.bind((0, 0))
            body = bytes(_LINK.size)
            head = _HEADER.pack(_HEADER.size + len(body), request, _REQUEST_DUMP, 1, 0)
            sock.send(head + body)
            found: list[bytes] = []
            whole = True
            for kind, flags, content in _messages(sock):
                whole = whole and not flags & _DUMP_INTERRUPTED
                if kind == reply:
                    found.append(content)
        if whole:
            return found
    raise OSError(errno.EAGAIN, "the list changed while it was read")


def _messages(sock: socket.socket) -> Iterator[tuple[int, int, bytes]]:
    """Yield type, flags and body of each message of a dump, up to the end of the dump."""
    while True:
        data = sock.recv(_REPLY_BYTES)
        while data:
            length, kind, flags, _, _ = _HEADER.unpack_from(data)
            body = data[_HEADER.size : length]
            if kind == _NLMSG_DONE:
                return
            if kind == _NLMSG_ERROR:
                code = -struct.unpack_from("=i", body)[0]
                raise OSError(code, os.strerror(code))
            yield kind, flags, body
            data = data[_aligned(length) :]


def _device(body: bytes) -> Device:
    _, kind, index, flags, _ = _LINK.unpack_from(body)
    told = _attributes(body[_LINK.size :])
    info = _attributes(told.get(_IFLA_LINKINFO, b""))
    made_as = _text(info.get(_INFO_KIND, b""))
    return Device(
        index=index,
        name=_text(told[_IFLA_IFNAME]),
        up=flags & (_IFF_UP | _IFF_RUNNING) == _IFF_UP | _IFF_RUNNING,
        loopback=bool(flags & _IFF_LOOPBACK),
        overlay=kind not in _CABLES or made_as in _ENCAPSULATING,
        master=_number(told.get(_IFLA_MASTER)),
        lower=_number(told.get(_IFLA_LINK)) if made_as in _ON_ANOTHER else 0,
        mtu=_number(told.get(_IFLA_MTU)),
    )


def _address(body: bytes) -> tuple[int, Address | None]:
    """Return the device's index and the address, or None if the address must not be used."""
    family, prefix, flags, _, index = _ADDRESS.unpack_from(body)
    told = _attributes(body[_ADDRESS.size :])
    if _IFA_FLAGS in told:
        flags = _number(told[_IFA_FLAGS])
    packed = told.get(_IFA_LOCAL) or told.get(_IFA_ADDRESS)
    if packed is None or family not in (socket.AF_INET, socket.AF_INET6) or flags & _UNUSABLE:
        return index, None
    if family == socket.AF_INET6 and flags & _TEMPORARY:
        return index, None
    return index, Address(text=str(ipaddress.ip_address(packed)), prefix=prefix)


def _attributes(data: bytes) -> dict[int, bytes]:
    """Return the values of a sequence of netlink attributes by type."""
    found, at, last = {}, 0, len(data) - _ATTRIBUTE.size
    while at <= last:
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            break
        found[kind & _TYPE_BITS] = data[at + _ATTRIBUTE.size : at + length]
        at += _aligned(length)
    return found


def _aligned(length: int) -> int:
    return (length + 3) & ~3


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode(errors="surrogateescape")


def _number(value: bytes | None) -> int:
    return int.from_bytes(value, sys.byteorder) if value else 0


_log = logging.getLogger("slackline.nic")

SocketAddress = tuple[str, int] | tuple[str, int, int, int]
"""An address and port as socket calls take them; for IPv6 with flow label and scope id."""

_MOST_ADDRESSES = 64
_LAST_PORT = 65535


@record(frozen=True, kw_only=True)
class Interface:
    """An address of a host's network device, with the port that the engine listens on."""

    name: str
    """The device's name, or the text by which the user has chosen the address."""
    address: str
    """The IPv4 or IPv6 address, without a scope."""
    prefix: int
    """The prefix length of the subnet in bits."""
    port: int = 0
    """The TCP port at which the engine listens on this address; 0 before it listens."""
    index: int = 0
    """The number of the device in its host's kernel, the scope id of link-local addresses; 0 if
    unknown."""
    cable: str = ""
    """The name of the device whose cable the packets take: for a VLAN the device below it, for
    others the device itself. Addresses with the same name share a cable."""
    overlay: bool = False
    """Whether the device is a tunnel, whose packets travel over another device's cable."""

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        return _ip(self.address)

    @property
    def subnet(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
        return _subnet(self.address, self.prefix)

    @property
    def is_loopback(self) -> bool:
        return self.ip.is_loopback

    @property
    def is_link_local(self) -> bool:
        """Whether the address is valid on its own cable only, so that its subnet is no network."""
        return self.ip.is_link_local

    @property
    def scope(self) -> int:
        """The scope id that sockets need with the address; 0 for none."""
        return self.index if self.ip.version == 6 and self.is_link_local else 0

    @property
    def nic(self) -> str:
        """The name that tells the NICs of a host apart."""
        return self.cable or self.name


def local_interfaces(wanted: Sequence[str], *, loopback: bool = False) -> tuple[Interface, ...]:
    """Return the addresses of this host that peers may use.

    `wanted` lists names of devices, or addresses with a prefix length ("10.0.0.1/24", "fd00::1/64")
    where a device has several. An empty list takes all addresses of all devices that are up;
    addresses of the loopback device come last. With `loopback`, an empty list takes these only.
    Raises UsageError that names a missing device or address.
    """
    system = devices()
    if not wanted:
        if not loopback:
            return _usable(system)
        # The loopback device may have other addresses too, which other hosts can reach.
        near = _usable([device for device in system if device.loopback])
        return tuple(each for each in near if each.is_loopback)
    chosen: list[Interface] = []
    for word in wanted:
        if "/" in word:
            chosen.append(_by_address(word, system))
            continue
        found = [each for device in system if device.name == word for each in _of(device, system)]
        if not found:
            names = ", ".join(sorted(each.name for each in system if each.addresses)) or "none"
            raise UsageError(
                f"interface {word!r} has no address; interfaces with an address: {names}"
            )
        chosen += found
    return tuple(chosen)


def _usable(system: Sequence[Device]) -> tuple[Interface, ...]:
    """Return all addresses of the devices that are up: NICs first, then tunnels, then loopback.

    At most 64 addresses are returned; a log line names the devices whose addresses are left out.
    """
    up = sorted((each for each in system if each.up), key=lambda e: (e.loopback, e.overlay))
    found = [each for device in up for each in _of(device, system)]
    found.sort(key=lambda each: each.is_loopback)
    taken = _within_limit(found)
    if len(taken) < len(found):
        left = {each.name: None for each in found if each not in taken}
        _log.warning(
            "%d of this host's %d addresses are not used, those of %s: SLACKLINE_INTERFACE names "
            "the interfaces to use",
            len(found) - len(taken),
            len(found),
            ", ".join(left),
        )
    return taken


def _within_limit(found: Sequence[Interface]) -> tuple[Interface, ...]:
    """Return at most 64 of the addresses, link-local ones left out first, in the same order."""
    if len(found) <= _MOST_ADDRESSES:
        return tuple(found)
    best = sorted(found, key=lambda each: (each.is_link_local, not each.is_loopback))
    kept = set(best[:_MOST_ADDRESSES])
    return tuple(each for each in found if each in kept)


def _of(device: Device, system: Iterable[Device]) -> list[Interface]:
    """Return a device's addresses, IPv4 before IPv6 and link-local ones last.

    The link-local addresses of a bridge's or bond's ports are left out: only the addresses of the
    bridge or bond itself can be reached.
    """
    below = {each.index: each.name for each in system}
    found = [
        Interface(
            name=device.name,
            address=each.text,
            prefix=each.prefix,
            index=device.index,
            cable=below.get(device.lower, device.name),
            overlay=device.overlay,
        )
        for each in device.addresses
    ]
    found.sort(key=lambda each: (each.is_link_local, each.ip.version))
    return [each for each in found if not (device.master and each.is_link_local)]


def _by_address(word: str, system: Iterable[Device]) -> Interface:
    """Return the interface for a text like "10.0.0.1/24", as a NIC with this address only."""
    try:
        given = ipaddress.ip_interface(word)
    except ValueError as error:
        raise UsageError(
            f"an interface must be a name or an IPv4 or IPv6 address with its prefix length, "
            f"as 10.0.0.1/24, not {word!r}"
        ) from error
    address = str(given.ip)
    holder = [each for each in system if any(address == its.text for its in each.addresses)]
    index = holder[0].index if len(holder) == 1 else 0
    found = Interface(
        name=word,
        address=address,
        prefix=given.network.prefixlen,
        index=index,
        cable=word,
    )
    with socket.socket(family_of(address), socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(socket_address(address, 0, found.scope))
        except OSError as error:
            raise UsageError(f"{address} is not an address of this host: {error}") from error
    return found


def loopback_fault() -> str:
    """Return why ranks of this host cannot reach each other if the loopback device is down.

    The kernel also sends packets between this host's other addresses through the loopback device.
    Returns "" if the device is up, or if the system does not answer.
    """
    try:
        found = [device for device in devices() if device.loopback]
    except UsageError:
        return ""
    if not found or any(device.up for device in found):
        return ""
    name = found[0].name
    return (
        f"the loopback interface {name} is down, which ranks of one host need for TCP and UDP: "
        f"ip link set {name} up"
    )


def still_there(known: Iterable[Interface]) -> tuple[Interface, ...]:
    """Return the interfaces of `known` whose address this host still has, also on a down device."""
    there = {each.text for device in devices() for each in device.addresses}
    return tuple(each for each in known if each.address in there or each.index == 0)


def to_rows(interfaces: Iterable[Interface]) -> list[list[object]]:
    """Convert interfaces to lists for JSON; `from_rows` is the inverse."""
    return [[i.name, i.address, i.prefix, i.port, i.index, i.cable, i.overlay] for i in interfaces]


def from_rows(rows: object) -> tuple[Interface, ...]:
    """Return the interfaces in rows of JSON; raise TypeError or ValueError if a row is wrong."""
    if not isinstance(rows, list):
        raise TypeError(f"interfaces: a list was expected, not {rows!r}")
    return tuple(_from_row(row) for row in rows)


# The ranks of a host all tell the same addresses: each is read once.
@lru_cache(maxsize=4096)
def _ip(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(address)


@lru_cache(maxsize=4096)
def _subnet(address: str, prefix: int) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    return ipaddress.ip_network((address, prefix), strict=False)


def _from_row(row: object) -> Interface:
    kinds = (str, str, int, int, int, str, bool)
    if not isinstance(row, list) or tuple(map(type, row)) != kinds:
        raise TypeError(f"interface: {row!r}")
    name, address, prefix, port, index, cable, overlay = row
    found = Interface(
        name=name,
        address=address,
        prefix=prefix,
        port=port,
        index=index,
        cable=cable,
        overlay=overlay,
    )
    if not (found.subnet and 0 <= port <= _LAST_PORT and 0 <= index < 1 << 31):
        raise ValueError(f"interface: {row!r}")
    return found


def family_of(address: str) -> socket.AddressFamily:
    """Return the address family of an IP address without a scope."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def socket_address(address: str, port: int, scope: int = 0) -> SocketAddress:
    """Return the address in the form that socket calls take for its family."""
    return (address, port, 0, scope) if ":" in address else (address, port)
