"""The network devices and addresses of this host, read from the Linux kernel by rtnetlink(7)."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from slackline.errors import UsageError
from slackline.nic.connect._sockets import closed_in_children

__all__ = ["Address", "Device", "devices", "open_monitor"]

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


@dataclass(frozen=True, kw_only=True)
class Address:
    """An IPv4 or IPv6 address of a device, with the length of its subnet's prefix in bits."""

    text: str
    prefix: int


@dataclass(frozen=True, kw_only=True)
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
