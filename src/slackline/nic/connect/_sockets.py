"""Sockets: waits on the event loop, the end in a forked child, free ports, congestion control.

A connection ends with its last descriptor. A child that kept copies of its parent's sockets would
hide the parent's death from the peers until the child ends too. So the child closes all sockets at
once.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import struct
import weakref
from pathlib import Path
from typing import Any, TypeVar

from slackline.errors import UsageError

__all__ = [
    "AUTO",
    "SYSTEM",
    "NoPortError",
    "bind_to_free_port",
    "check_congestion",
    "closed_in_children",
    "control_congestion",
    "is_named",
    "lacks_resources",
    "none_is_free",
    "past",
    "port_range",
    "port_range_text",
    "ready",
    "share_ports",
]


Sock = TypeVar("Sock", bound=socket.socket)

_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
"""All sockets of all engines of the process: a fork concerns the process as a whole."""


def closed_in_children(sock: Sock) -> Sock:
    """Have a child of `os.fork` close the socket, until it is closed or detached; return it.

    The parent's socket is not affected: nothing is shut down.
    """
    _sockets.add(sock)
    return sock


def lacks_resources(error: Exception) -> bool:
    """Return whether the error says that this process or host lacks memory or descriptors."""
    if isinstance(error, OSError):
        return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
    return isinstance(error, MemoryError)


async def ready(sock: socket.socket, *, write: bool = False, until_s: float | None = None) -> None:
    """Wait until the socket is readable, or writable with `write`.

    With `until_s`, a time of the running event loop, also return once this time has passed. The
    caller must then try the socket once more: a process that did not run meanwhile, on a busy or
    stopped machine, finds what the peer has sent long ago only after the time has passed.
    """
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    (loop.add_writer if write else loop.add_reader)(sock, wake)
    timer = None if until_s is None else loop.call_at(until_s, wake)
    try:
        await woken
    finally:
        (loop.remove_writer if write else loop.remove_reader)(sock)
        if timer is not None:
            timer.cancel()


def past(until_s: float | None) -> bool:
    """Return whether a time of the running event loop has passed; never for None."""
    return until_s is not None and asyncio.get_running_loop().time() >= until_s


def _close_all() -> None:
    for sock in list(_sockets):
        # After `detach` the child's copy of the socket closes no descriptor that the child opens.
        if (fd := sock.detach()) >= 0:
            os.close(fd)
    _sockets.clear()


os.register_at_fork(after_in_child=_close_all)


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


def bind_to_free_port(sock: socket.socket, address: tuple[Any, ...]) -> None:
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


_log = logging.getLogger("slackline.nic")

AUTO = "auto"
"""The setting that replaces BBR on short paths, and keeps every other default of the system."""
SYSTEM = "system"
"""The setting that keeps the system's default."""
_ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
_NAME_BYTES = 16
_RTT_OFFSET = 68
"""The offset in bytes of `tcpi_rtt` in the answer of TCP_INFO (linux/tcp.h)."""
_SHORT_US = 5000
"""The longest round trip, in microseconds, of a path inside a building."""
_REPLACEMENT = "cubic"


def is_named(congestion: str) -> bool:
    """Return whether the setting is the name of a congestion control, such as "reno"."""
    return congestion not in (AUTO, SYSTEM)


def check_congestion(congestion: str) -> None:
    """Raise UsageError, with the names that are available, if the setting cannot be satisfied."""
    if is_named(congestion):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            control_congestion(probe, congestion)


def control_congestion(sock: socket.socket, congestion: str) -> None:
    """Set the congestion control of a TCP socket, connected where the setting is "auto".

    "auto" replaces BBR by CUBIC if the measured round trip is at most 5 ms. BBR takes the highest
    rate of a connection for the rate of the path, and paces each connection by timers. When several
    ranks send to one port, the estimates are wrong and ports stay idle. Raises UsageError, with the
    names that are available, if this process may not use the control of that name.
    """
    if congestion == SYSTEM:
        return
    if congestion == AUTO:
        _replace_bbr(sock)
        return
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
    except OSError as error:
        offered = ", ".join(_ALLOWED.read_text().split())
        raise UsageError(
            f"the congestion control {congestion!r} cannot be used here ({error.strerror}): "
            f"the kernel offers {offered}"
        ) from error


def _replace_bbr(sock: socket.socket) -> None:
    current = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES)
    name = current.partition(b"\0")[0].decode()
    if not name.startswith("bbr") or _round_trip_us(sock) > _SHORT_US:
        return
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _REPLACEMENT.encode())
    except OSError as error:
        _log.info(
            "the congestion control %s stays, since %s cannot be used here: %s",
            name,
            _REPLACEMENT,
            error.strerror,
        )


def _round_trip_us(sock: socket.socket) -> int:
    """Return the smoothed round trip in microseconds that TCP has measured."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT_OFFSET + 4)
    (measured,) = struct.unpack_from("=I", info, _RTT_OFFSET)
    return int(measured)
