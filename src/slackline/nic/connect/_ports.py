"""The kernel's free ports, of which a host may have few or none."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

from slackline.errors import UsageError
from slackline.nic.connect._addresses import SocketAddress

__all__ = [
    "NoPortError",
    "bind_to_free_port",
    "none_is_free",
    "port_range",
    "port_range_text",
    "share_ports",
]

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_BIND_ADDRESS_NO_PORT = 24
"""The socket option IP_BIND_ADDRESS_NO_PORT (ip(7))."""


class NoPortError(UsageError):
    """No port of this host is free; the text names the range of ports."""

    def __init__(self, address: str) -> None:
        super().__init__(f"no port of {address} is free: {port_range_text()}")


def port_range() -> tuple[int, int]:
    """Return the first and the last port that the kernel gives to programs, for IPv4 and IPv6."""
    first, last = map(int, _RANGE.read_text().split())
    return first, last


def port_range_text() -> str:
    """Return, for an error, the range that the kernel takes free ports from, and what to do."""
    first, last = port_range()
    return (
        f"the kernel takes ports from {first} to {last} (net.ipv4.ip_local_port_range), which are "
        f"{last - first + 1}: widen the range, as by sysctl -w "
        "net.ipv4.ip_local_port_range='32768 60999', or end programs that hold ports"
    )


def bind_to_free_port(sock: socket.socket, address: SocketAddress) -> None:
    """Bind a socket to an address whose port is 0; raise NoPortError if no port is free."""
    try:
        sock.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise NoPortError(str(address[0])) from error
        raise


def share_ports(sock: socket.socket) -> None:
    """Have `bind` to port 0 leave the choice of the port to `connect`.

    Connections to different listeners can then have one port.
    """
    sock.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)


def none_is_free(family: socket.AddressFamily) -> bool:
    """Return whether the kernel has no free port for a socket of this family."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", 0))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
