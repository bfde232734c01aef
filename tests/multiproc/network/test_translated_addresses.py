"""Tests of ranks whose addresses other hosts do not reach, as behind address translation (NAT)."""

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
from network_hosts import RANK, Wiring, plain_environment

REMEDY = (
    "the address 172.17.0.2 of rank 1 may be behind NAT (address translation) or a firewall: set "
    "SLACKLINE_INTERFACE on that host to an interface whose address all hosts of the job reach, or "
    "start its container with the network of the host"
)


@pytest.mark.slow
def test_an_address_that_another_host_answers_for_may_be_behind_nat(
    wire: Callable[[int], Wiring],
) -> None:
    """Let a router refuse the connections to an address that is a host's own behind it."""
    net = wire(2)
    net.switch("s0")
    net.plug(0, "eth0", "s0", "10.0.0.1/24")
    net.plug(1, "eth0", "s0", "172.17.0.2/16")
    net.ip(net.fabric, "address add 10.0.0.9/24 dev s0", "address add 172.17.0.2/32 dev lo")
    net.ip(net.host(0), "route add 172.17.0.0/16 via 10.0.0.9")
    net.ip(net.host(1), "route add 10.0.0.0/24 dev eth0")
    ranks = [
        subprocess.Popen(
            net.command(host, [sys.executable, str(RANK), str(host), "2", str(net.folder), "tcp"]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=plain_environment(),
        )
        for host in range(2)
    ]
    told = [json.loads(rank.communicate(timeout=60)[0].splitlines()[0]) for rank in ranks]
    assert told[0]["error"].startswith("PeerError: rank 1: its process has ended (tcp 10.0.0.1>")
    assert told[0]["error"].endswith(f"; {REMEDY})")
    assert told[1]["error"].startswith("PeerError: rank 0 could not open the group: rank 1: its ")
