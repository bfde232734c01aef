"""Tests of groups on twelve kinds of networks, without a setting: the sums and the rails."""

from collections.abc import Callable

import pytest
from network_hosts import Wiring
from network_table import NETWORKS, Network, one_subnet

Wire = Callable[[int], Wiring]
QUICK = [NETWORKS[name] for name in ("routed", "plugged-in-later")]
TENTH = (1 << 20) // 10


def check(wire: Wire, network: Network) -> None:
    """Open a group on a network, reduce, and compare the rails with the expected rails."""
    net = wire(2)
    network.build(net)
    net.start()
    before = net.work()[0]["sent"]
    told = net.work_until_rails(network.rails)[0]
    for _ in range(3):
        told = net.work()[0]
    assert told["rails"] == list(network.rails)
    for nic in network.carrying:
        assert told["sent"][nic] - before[nic] > TENTH
    if network.later is not None:
        network.later(net)
        net.work_until_rails(network.rails_later)
        before, after = net.work()[0]["sent"], net.work()[0]["sent"]
        for nic in ("eth0", "eth1"):
            assert after[nic] - before[nic] > TENTH


@pytest.mark.parametrize("network", QUICK, ids=str)
def test_ranks_find_the_rails_of_a_network_and_add_up_exactly(wire: Wire, network: Network) -> None:
    check(wire, network)


@pytest.mark.slow
@pytest.mark.parametrize("network", [n for n in NETWORKS.values() if n not in QUICK], ids=str)
def test_ranks_find_the_rails_of_any_network_and_add_up_exactly(
    wire: Wire, network: Network
) -> None:
    check(wire, network)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["link-local", "routed", "one-subnet", "other-mtus"])
def test_udp_rails_take_the_same_paths(wire: Wire, name: str) -> None:
    net = wire(2)
    NETWORKS[name].build(net)
    net.start("udp")
    rails = [rail.replace("tcp", "udp") for rail in NETWORKS[name].rails]
    net.work_until_rails(rails)
    for _ in range(3):
        assert net.work()[0]["rails"] == rails


@pytest.mark.slow
def test_nics_of_one_subnet_that_answer_arp_for_each_other_still_add_up_exactly(wire: Wire) -> None:
    net = wire(2)
    one_subnet(net)
    for host in range(2):
        net.set(
            net.host(host), "net.ipv4.conf.all.arp_ignore=0", "net.ipv4.conf.all.arp_announce=0"
        )
    net.start()
    net.work_until_rails(NETWORKS["one-subnet"].rails)


@pytest.mark.slow
def test_three_ranks_with_two_nics_each_have_two_rails_to_each_peer(wire: Wire) -> None:
    net = wire(3)
    for nic in range(2):
        net.switch(f"s{nic}")
        for host in range(3):
            net.plug(host, f"eth{nic}", f"s{nic}", f"fe80::{nic}:{host + 1}/64")
    net.start()
    wanted = [
        f"tcp fe80::{'1:' if nic else ''}1%eth{nic}>fe80::{'1:' if nic else ''}{peer + 1}%eth{nic}"
        for peer in (1, 2)
        for nic in range(2)
    ]
    net.work_until_rails(wanted)


@pytest.mark.slow
def test_hosts_without_a_common_family_are_told_so(wire: Wire) -> None:
    net = wire(2)
    net.switch("s0")
    net.plug(0, "eth0", "s0", "10.0.0.1/24")
    net.plug(1, "eth0", "s0", "fd00::2/64")
    # Rank 0 raises its own error, or the same one that rank 1 has told first.
    with pytest.raises(
        AssertionError,
        match=r"no rail leads to rank [01]: no address of one can be reached from the other, by "
        r"family and by subnet.*(10\.0\.0\.1.*fd00::2|fd00::2.*10\.0\.0\.1)",
    ):
        net.start()
