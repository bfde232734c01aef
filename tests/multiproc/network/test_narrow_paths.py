"""Tests of paths that drop long packets in silence, as behind a firewall that drops ICMP."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from network_hosts import RANK, STORE_RANK, Wiring, plain_environment

from slackline.lab._commands import Batch
from slackline.lab._system import execute

Wire = Callable[[int], Wiring]
ADVICE = (
    "set the MTU of the interfaces of both addresses to 1400 (ip link set dev eth0 mtu 1400), or "
    "let the routers and firewalls between them pass ICMP messages of the type 'fragmentation "
    "needed' or 'packet too big'"
)


def narrow(net: Wiring, *, towards: int, burst: int = 1424) -> None:
    """Cable two hosts to a switch each; the link between the switches is narrow in one direction.

    A token bucket drops packets to the host `towards` that are longer than the bucket: those of
    more than about `burst` - 14 bytes.
    """
    for host in range(2):
        net.switch(f"s{host}")
        net.plug(host, "eth0", f"s{host}", f"10.0.0.{host + 1}/24")
    net.ip(net.fabric, "link add c0 type veth peer name c1")
    for host in range(2):
        net.ip(net.fabric, f"link set c{host} addrgenmode none master s{host} up")
    bucket = f"qdisc add dev c{1 - towards} root tbf rate 200mbit burst {burst} latency 50ms"
    execute([Batch("tc", net.fabric, (bucket,))])


def opened(net: Wiring, rails: str) -> list[dict[str, str]]:
    """Open a group; return the first answer of each rank."""
    ranks = [
        subprocess.Popen(
            net.command(host, [sys.executable, str(RANK), str(host), "2", str(net.folder), rails]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=plain_environment(),
        )
        for host in range(2)
    ]
    answers = [rank.communicate(timeout=60)[0] for rank in ranks]
    return [json.loads(answer.splitlines()[0]) for answer in answers]


@pytest.mark.slow
@pytest.mark.parametrize("rails", ["tcp", "udp"])
@pytest.mark.parametrize("towards", [0, 1])
def test_a_group_over_a_narrow_path_ends_soon_with_the_mtu_to_set(
    wire: Wire, rails: str, towards: int
) -> None:
    net = wire(2)
    narrow(net, towards=towards)
    begin = time.monotonic()
    told = opened(net, rails)
    assert time.monotonic() - begin < 25
    source, target = f"10.0.0.{2 - towards}", f"10.0.0.{towards + 1}"
    why = (
        f"no long message passes to or from rank 1: packets of up to 1400 bytes from {source} to "
        f"{target} arrive, and packets of 1450 bytes vanish without an answer: {ADVICE}"
    )
    assert told == [
        {"error": f"LinkError: {why}"},
        {"error": f"PeerError: rank 0 could not open the group: {why}"},
    ]


@pytest.mark.slow
def test_a_link_with_a_narrow_path_goes_on_over_its_other_path(wire: Wire) -> None:
    net = wire(2)
    narrow(net, towards=1)
    net.switch("wide")
    for host in range(2):
        net.plug(host, "eth1", "wide", f"10.0.1.{host + 1}/24")
    net.start("tcp")
    for _ in range(3):
        assert net.work()[0]["rails"] == ["tcp 10.0.1.1>10.0.1.2"]


@pytest.mark.slow
@pytest.mark.parametrize("rails", ["tcp", "udp"])
def test_packets_are_no_longer_than_those_that_tcp_has_agreed_on(wire: Wire, rails: str) -> None:
    """Check a narrow path behind a router that lowers TCP's segments, which a route does here."""
    net = wire(2)
    narrow(net, towards=1)
    for host in range(2):
        net.ip(net.host(host), "route change 10.0.0.0/24 dev eth0 advmss 1340")
    net.start(rails)
    assert net.work()[0]["rails"] == [f"{rails} 10.0.0.1>10.0.0.2"]


@pytest.mark.slow
@pytest.mark.parametrize("towards", [0, 1])
def test_a_store_whose_long_messages_vanish_is_named_by_the_host_that_sends_them(
    wire: Wire, towards: int
) -> None:
    """Check a path that passes only short messages of the store, on the host of rank 0."""
    net = wire(2)
    narrow(net, towards=towards, burst=400)
    source, target = f"10.0.0.{2 - towards}", f"10.0.0.{towards + 1}"
    ranks = [
        subprocess.Popen(
            net.command(host, [sys.executable, str(STORE_RANK), str(host), "10.0.0.1"]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=plain_environment(),
        )
        for host in range(2)
    ]
    try:
        # Without the sentence the group fails after a minute, and the line is another one.
        said = ranks[1 - towards].stderr
        assert said is not None
        line = next(line for line in said if not line.startswith("["))
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    ports = r":\d+" if towards == 0 else ":29511", ":29511" if towards == 0 else r":\d+"
    ends = f"from {re.escape(source)}{ports[0]} to {re.escape(target)}{ports[1]} "
    assert re.match(
        rf"the connection of the rendezvous store {ends}was opened, and then \d+ bytes were sent "
        "again and again without an acknowledgement: the path between these addresses drops long "
        "packets in silence",
        line,
    ), line
