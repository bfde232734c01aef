"""Packet sockets of Linux: whole Ethernet packets of one interface, in and out."""

import socket
import struct
from contextlib import suppress
from pathlib import Path

from slackline.errors import UsageError

__all__ = ["mac_of", "mac_text", "mtu_of", "packet_socket", "parse_mac"]

_ALL_TYPES = 0x0003
_SOL_PACKET, _ADD_MEMBERSHIP, _PROMISCUOUS = 263, 1, 1
_BUFFER_BYTES = 8 << 20


def packet_socket(interface: str, ethertype: int = _ALL_TYPES) -> socket.socket:
    """Return a socket that gets all packets of an interface of this type, to any address.

    Raises UsageError if there is no such interface, it is down, or this process may not open it.
    """
    try:
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    except PermissionError:
        raise UsageError(
            f"packets of {interface} need root or CAP_NET_RAW, which this process does not have"
        ) from None
    try:
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            made.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        made.bind((interface, ethertype))
        index = socket.if_nametoindex(interface)
        # A card of its own passes only its own address on, and a node has one for each port.
        membership = struct.pack("@iHH8s", index, _PROMISCUOUS, 0, b"")
        made.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, membership)
    except OSError as error:
        made.close()
        raise UsageError(f"cannot open {interface}: {error.strerror or error}") from error
    # An interface that is down reports it once, to the first call.
    with suppress(OSError):
        made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return made


def mac_of(interface: str) -> int:
    """Return the MAC address of an interface, the first byte on the wire highest."""
    return parse_mac(_read(interface, "address"))


def mtu_of(interface: str) -> int:
    """Return the bytes that a packet of an interface may have behind its Ethernet header."""
    return int(_read(interface, "mtu"))


def _read(interface: str, name: str) -> str:
    try:
        return Path(f"/sys/class/net/{interface}/{name}").read_text().strip()
    except OSError:
        raise UsageError(f"there is no interface {interface!r} on this host") from None


def parse_mac(text: str) -> int:
    """Return a MAC address as a number: parse_mac("02:53:4c:00:00:00")."""
    parts = text.split(":")
    try:
        numbers = bytes(int(part, 16) for part in parts)
    except ValueError:
        numbers = b""
    if len(numbers) != 6:
        raise UsageError(f"a MAC address is six bytes like 02:53:4c:00:00:00, not {text!r}")
    return int.from_bytes(numbers, "big")


def mac_text(address: int) -> str:
    """Return a MAC address as text."""
    return ":".join(f"{byte:02x}" for byte in address.to_bytes(6, "big"))
