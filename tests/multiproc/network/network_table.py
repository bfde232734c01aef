"""Twelve networks, each with the rails that rank 0 has to rank 1 when no setting is given."""

import socket
from collections.abc import Callable
from dataclasses import dataclass

from network_hosts import Wiring


@dataclass(frozen=True)
class Network:
    """A network of two hosts: a function that cables it, and the rails that ranks must find."""

    name: str
    build: Callable[[Wiring], None]
    rails: tuple[str, ...]
    """The rails that rank 0 must have, in their order."""
    carrying: tuple[str, ...] = ("eth0",)
    """The NICs of rank 0 that must have sent a tenth of a round's bytes each."""
    later: Callable[[Wiring], None] | None = None
    """A change of the network while the group is open."""
    rails_later: tuple[str, ...] = ()
    """The rails that rank 0 must have after the change `later`."""

    def __str__(self) -> str:
        return self.name


def two_subnets(net: Wiring) -> None:
    """Cable two NICs of each host, in subnets of both families."""
    for nic in range(2):
        net.switch(f"s{nic}")
        for host in range(2):
            addresses = f"10.0.{nic}.{host + 1}/24", f"fd00:0:0:{nic}::{host + 1}/64"
            net.plug(host, f"eth{nic}", f"s{nic}", *addresses, f"fe80::{nic}:{host + 1}/64")


def ipv6_alone(net: Wiring) -> None:
    """Cable two NICs of each host, which have IPv6 addresses only."""
    for nic in range(2):
        net.switch(f"s{nic}")
        for host in range(2):
            net.plug(host, f"eth{nic}", f"s{nic}", f"fd00:0:0:{nic}::{host + 1}/64")


def link_local(net: Wiring) -> None:
    """Cable two NICs of each host, which have link-local addresses only."""
    for nic in range(2):
        net.switch(f"s{nic}")
        for host in range(2):
            net.plug(host, f"eth{nic}", f"s{nic}", f"fe80::{nic}:{host + 1}/64")


def routed(net: Wiring) -> None:
    """Cable two NICs of each host to a router, each in a subnet of its own."""
    net.set(net.fabric, "net.ipv4.ip_forward=1")
    for host in range(2):
        for nic in range(2):
            subnet = f"10.{host}.{nic}"
            net.route(host, f"eth{nic}", f"{subnet}.1/24", f"{subnet}.254/24", metric=100 + nic)


def one_subnet(net: Wiring) -> None:
    """Cable two NICs of each host to one switch, in one subnet.

    Each NIC answers ARP only for its own address, as manuals advise for such hosts.
    """
    net.switch("s0")
    for host in range(2):
        net.set(
            net.host(host), "net.ipv4.conf.all.arp_ignore=1", "net.ipv4.conf.all.arp_announce=2"
        )
        for nic in range(2):
            net.plug(host, f"eth{nic}", "s0", f"10.0.0.{2 * nic + host + 1}/24")


def other_names(net: Wiring) -> None:
    """Cable two NICs of each host whose names differ between the hosts."""
    for nic, names in enumerate((("enp1s0", "lan1"), ("ib0", "aux0"))):
        net.switch(f"s{nic}")
        for host, name in enumerate(names):
            net.plug(host, name, f"s{nic}", f"10.0.{nic}.{host + 1}/24")


def container_bridges(net: Wiring) -> None:
    """Give each host a local bridge with a port, all with the address that Docker gives them."""
    net.switch("s0")
    for host in range(2):
        net.ip(
            net.host(host),
            "link add docker0 type bridge",
            "link add veth1 type veth peer name inside1",
            "link set veth1 master docker0 up",
            "link set inside1 up",
            "link set docker0 up",
            "address add 172.17.0.1/16 dev docker0",
        )
        net.plug(host, "eth0", "s0", f"10.0.0.{host + 1}/24")


def own_name_is_loopback(net: Wiring) -> None:
    """Map each host's name to 127.0.1.1, as Debian's installer does."""
    net.switch("s0")
    for host in range(2):
        net.write_hosts(host, f"127.0.0.1 localhost\n127.0.1.1 {socket.gethostname()}\n")
        net.plug(host, "eth0", "s0", f"10.0.0.{host + 1}/24")


def one_nic_down(net: Wiring) -> None:
    """Cable two NICs of each host, one of which is down on one host."""
    for nic in range(2):
        net.switch(f"s{nic}")
        for host in range(2):
            up = (host, nic) != (1, 1)
            net.plug(host, f"eth{nic}", f"s{nic}", f"10.0.{nic}.{host + 1}/24", up=up)


def bring_up(net: Wiring) -> None:
    """Bring up the NIC that is down."""
    net.ip(net.host(1), "link set eth1 up")


def other_mtus(net: Wiring) -> None:
    """Connect a NIC with an MTU of 9000 bytes to a NIC with an MTU of 1500, without a router."""
    net.switch("s0", mtu=9000)
    for host, mtu in enumerate((9000, 1500)):
        net.plug(host, "eth0", "s0", f"10.0.0.{host + 1}/24", mtu=mtu)


def one_nic(net: Wiring) -> None:
    """Cable one NIC of each host."""
    net.switch("s0")
    for host in range(2):
        net.plug(host, "eth0", "s0", f"10.0.0.{host + 1}/24")


def plug_in(net: Wiring) -> None:
    """Plug a second NIC into each host."""
    net.switch("s1")
    for host in range(2):
        net.plug(host, "eth1", "s1", f"10.0.1.{host + 1}/24", f"fd00:0:0:1::{host + 1}/64")


def one_common_family(net: Wiring) -> None:
    """Cable a host with IPv4 and IPv6 addresses to a host with IPv6 addresses only."""
    net.switch("s0")
    net.plug(0, "eth0", "s0", "10.0.0.1/24", "fd00::1/64")
    net.plug(1, "eth0", "s0", "fd00::2/64")


BOTH = ("eth0", "eth1")
TWO_RAILS = ("tcp 10.0.0.1>10.0.0.2", "tcp 10.0.1.1>10.0.1.2")
NETWORKS = {
    network.name: network
    for network in (
        Network("two-subnets", two_subnets, TWO_RAILS, BOTH),
        Network(
            "ipv6-alone",
            ipv6_alone,
            ("tcp fd00::1>fd00::2", "tcp fd00:0:0:1::1>fd00:0:0:1::2"),
            BOTH,
        ),
        Network(
            "link-local",
            link_local,
            ("tcp fe80::1%eth0>fe80::2%eth0", "tcp fe80::1:1%eth1>fe80::1:2%eth1"),
            BOTH,
        ),
        Network("routed", routed, ("tcp 10.0.0.1>10.1.0.1", "tcp 10.0.1.1>10.1.1.1"), BOTH),
        Network("one-subnet", one_subnet, ("tcp 10.0.0.1>10.0.0.2", "tcp 10.0.0.3>10.0.0.4"), BOTH),
        Network("other-names", other_names, TWO_RAILS, ("enp1s0", "ib0")),
        Network("container-bridges", container_bridges, TWO_RAILS[:1]),
        Network("own-name-is-loopback", own_name_is_loopback, TWO_RAILS[:1]),
        Network(
            "one-nic-down",
            one_nic_down,
            TWO_RAILS[:1],
            later=bring_up,
            rails_later=TWO_RAILS,
        ),
        Network("other-mtus", other_mtus, TWO_RAILS[:1]),
        Network("plugged-in-later", one_nic, TWO_RAILS[:1], later=plug_in, rails_later=TWO_RAILS),
        Network("one-common-family", one_common_family, ("tcp fd00::1>fd00::2",)),
    )
}
