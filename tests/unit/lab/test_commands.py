"""Tests of the commands that create a lab. No command is executed."""

import pytest

from slackline.errors import UsageError
from slackline.lab import LabOptions
from slackline.lab._commands import (
    Batch,
    Shaping,
    configure_host,
    kernel_up,
    plug,
    rate_changes,
    shape,
    user_up,
)

OPTIONS = LabOptions(hosts=2, nics=1, rate=10**9)


def test_a_bridge_knows_its_ports_and_learns_nothing() -> None:
    links, known, rates = kernel_up("x", OPTIONS)
    assert links == Batch(
        "ip",
        "slackline-x-fabric",
        (
            "link add br0 type bridge mcast_snooping 0",
            "link set br0 addrgenmode none mtu 1500",
            "link set br0 up",
            "link add p0.0 mtu 1500 type veth peer name eth0 address 02:53:4c:00:00:00 mtu 1500 "
            "netns slackline-x-0",
            "link set p0.0 addrgenmode none master br0",
            "link set p0.0 type bridge_slave learning off flood off",
            "link set p0.0 gso_max_size 12288 up",
            "link add p1.0 mtu 1500 type veth peer name eth0 address 02:53:4c:00:00:01 mtu 1500 "
            "netns slackline-x-1",
            "link set p1.0 addrgenmode none master br0",
            "link set p1.0 type bridge_slave learning off flood off",
            "link set p1.0 gso_max_size 12288 up",
        ),
    )
    assert known == Batch(
        "bridge",
        "slackline-x-fabric",
        (
            "fdb add 02:53:4c:00:00:00 dev p0.0 master static",
            "fdb add 02:53:4c:00:00:01 dev p1.0 master static",
        ),
    )
    assert rates == Batch(
        "tc",
        "slackline-x-fabric",
        (
            "qdisc replace dev p0.0 root tbf rate 1000000000bit burst 16384 limit 4166666",
            "qdisc replace dev p1.0 root tbf rate 1000000000bit burst 16384 limit 4166666",
        ),
    )


def test_a_host_has_addresses_and_neighbours_and_its_own_end_of_the_rate() -> None:
    assert list(configure_host("x", OPTIONS, 1)) == [
        Batch(
            "ip",
            "slackline-x-1",
            (
                "link set lo up",
                "link set eth0 addrgenmode none gso_max_size 12288",
                "link set eth0 up",
                "address add 10.77.0.2/24 dev eth0",
                "neighbour add 10.77.0.1 lladdr 02:53:4c:00:00:00 dev eth0 nud permanent",
            ),
        ),
        Batch(
            "tc",
            "slackline-x-1",
            ("qdisc replace dev eth0 root tbf rate 1000000000bit burst 16384 limit 4166666",),
        ),
    ]


def test_a_nic_of_the_user_switch_gets_its_address_and_a_long_queue() -> None:
    first, second = user_up("x", LabOptions(hosts=2, nics=2, mtu=9000))
    assert first == Batch(
        "ip",
        "slackline-x-0",
        (
            "link set eth0 address 02:53:4c:00:00:00 mtu 9000 txqueuelen 10000",
            "link set eth1 address 02:53:4c:01:00:00 mtu 9000 txqueuelen 10000",
        ),
    )
    assert second.namespace == "slackline-x-1"


def test_cables_are_plugged_and_pulled_at_the_bridge() -> None:
    assert plug("home", ["p0.0", "p1.0"], False) == Batch(
        "ip", "home", ("link set p0.0 down", "link set p1.0 down")
    )
    assert plug("home", ["p0.0"], True) == Batch("ip", "home", ("link set p0.0 up",))


def test_without_a_rate_nothing_is_shaped() -> None:
    free = LabOptions(hosts=2)
    assert {batch.tool for batch in kernel_up("x", free)} == {"ip", "bridge"}
    assert [batch.tool for batch in configure_host("x", free, 0)] == ["ip"]


def test_a_rate_changes_where_it_differs() -> None:
    assert list(rate_changes("home", ["eth0"], 10**8, 10**8)) == []
    assert list(rate_changes("home", ["eth0"], 10**8, None)) == [
        Batch("tc", "home", ("qdisc delete dev eth0 root",))
    ]


@pytest.mark.parametrize(
    ("rate", "bucket"),
    [
        (10**8, Shaping(burst=16384, gso=12288, limit=1048576)),
        (10**9, Shaping(burst=16384, gso=12288, limit=4166666)),
        (5 * 10**9, Shaping(burst=65625, gso=49218, limit=20833333)),
        (10**11, Shaping(burst=163840, gso=65536, limit=416666666)),
    ],
)
def test_buckets_grow_with_the_rate(rate: int, bucket: Shaping) -> None:
    assert shape(rate) == bucket


def test_a_bucket_may_be_given() -> None:
    assert shape(10**9, 32 << 10) == Shaping(burst=32768, gso=24576, limit=4166666)
    options = LabOptions(hosts=2, rate=10**9, burst=32 << 10)
    lines = [line for batch in configure_host("x", options, 0) for line in batch.lines]
    assert any("gso_max_size 24576" in line for line in lines)
    assert any("burst 32768" in line for line in lines)


def test_a_bucket_must_be_of_a_sensible_size() -> None:
    with pytest.raises(UsageError, match=r"^burst must be between 16384 and 1048576, not 1500$"):
        LabOptions(burst=1500)
