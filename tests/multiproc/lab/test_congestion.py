"""A test of the choice of TCP's congestion control on a long path."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slackline.faults import parse_all
from slackline.lab import Lab, LabOptions

Start = Callable[..., subprocess.Popen[str]]

AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()

SERVE = """
import socket
server = socket.create_server(("0.0.0.0", 5000))
print("listening", flush=True)
connections = []
while True:
    connections.append(server.accept())
"""
CONNECT = """
import socket, sys
from slackline.nic.connect import control_congestion
with socket.create_connection((sys.argv[1], 5000), timeout=60) as sock:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
    control_congestion(sock, "auto")
    told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    print(told.partition(b"\\0")[0].decode())
"""


@pytest.mark.skipif("bbr" not in AVAILABLE, reason="the kernel has no BBR")
def test_bbr_stays_on_a_path_with_a_long_round_trip(start: Start) -> None:
    with Lab(LabOptions(hosts=2, switch="user")) as lab:
        server = start(lab, 0, SERVE)
        assert server.stdout is not None
        assert server.stdout.readline() == "listening\n"
        with lab.inject(parse_all("link 0-1 delay 10ms")):
            done = subprocess.run(
                lab.command(1, [sys.executable, "-c", CONNECT, lab.address(0)]),
                capture_output=True,
                text=True,
                timeout=100,
                check=False,
            )
    assert done.stderr == ""
    assert done.stdout == "bbr\n"
