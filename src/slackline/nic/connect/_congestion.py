"""The choice of TCP's congestion control for a connection."""

from __future__ import annotations

import logging
import socket
import struct
from pathlib import Path

from slackline.errors import UsageError

__all__ = ["AUTO", "SYSTEM", "check_congestion", "control_congestion", "is_named"]

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
