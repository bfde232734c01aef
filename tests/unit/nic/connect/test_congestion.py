"""Tests of the choice of TCP's congestion control for a connection."""

import socket
import struct
from pathlib import Path

import pytest

from slackline.nic.connect import check_congestion, control_congestion

AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
RTT_OFFSET = 68  # of tcpi_rtt in struct tcp_info
SHORT_US = 5000

needs_bbr = pytest.mark.skipif(
    not {"bbr", "cubic"} <= set(AVAILABLE), reason="the kernel has no BBR or no CUBIC"
)


def congestion_of(sock: socket.socket) -> str:
    told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return told.partition(b"\0")[0].decode()


def round_trip_us(sock: socket.socket) -> int:
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, RTT_OFFSET + 4)
    return int(struct.unpack_from("=I", info, RTT_OFFSET)[0])


def short_connection(listener: socket.socket) -> socket.socket:
    """Return a connection whose round trip is short, although the processors may be busy."""
    while True:
        sock = socket.create_connection(listener.getsockname())
        if round_trip_us(sock) <= SHORT_US:
            return sock
        sock.close()


def use(sock: socket.socket, name: str) -> None:
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    except PermissionError:
        pytest.skip(f"this process may not use {name}")


@needs_bbr
@pytest.mark.parametrize(
    ("before", "setting", "after"),
    [
        ("bbr", "auto", "cubic"),
        ("bbr", "system", "bbr"),
        ("bbr", "reno", "reno"),
        ("reno", "auto", "reno"),
        ("reno", "system", "reno"),
    ],
)
def test_auto_replaces_bbr_alone_on_a_short_path(before: str, setting: str, after: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        short_connection(listener) as connection,
    ):
        use(connection, "cubic")
        use(connection, before)
        control_congestion(connection, setting)
        assert congestion_of(connection) == after


@pytest.mark.parametrize("setting", ["auto", "system", "reno"])
def test_a_setting_that_can_be_satisfied_passes(setting: str) -> None:
    check_congestion(setting)
