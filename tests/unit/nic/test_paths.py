"""Tests of the rails (paths to a peer) on which two ranks agree from what each knows about the
other's interfaces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackline.errors import UsageError
from slackline.nic._paths import Interface, RailPlan, local_interfaces, plan_rails


def nics(*texts: str) -> tuple[Interface, ...]:
    """Return interfaces for texts like "10.0.0.1/24"; the port of the i-th is 5000 + i."""
    found = []
    for number, text in enumerate(texts):
        address, prefix = text.split("/")
        found.append(
            Interface(name=f"n{number}", address=address, prefix=int(prefix), port=5000 + number)
        )
    return tuple(found)


def shown(rails: tuple[RailPlan, ...]) -> list[str]:
    assert [rail.index for rail in rails] == list(range(len(rails)))
    return [
        f"{r.kind} {r.source or 'any'}>{','.join(f'{a}:{p}' for a, p in r.targets)}" for r in rails
    ]


def between(
    caller: tuple[Interface, ...],
    listener: tuple[Interface, ...],
    *,
    one_host: bool = False,
    chosen: bool = False,
    kinds: tuple[str, ...] = ("tcp",),
    connections: int = 1,
) -> list[str]:
    rails = plan_rails(
        caller,
        listener,
        one_host=one_host,
        chosen=chosen,
        kinds=kinds,
        connections=connections,
    )
    return shown(rails)


LO = "127.0.0.1/8"


def test_each_common_subnet_is_a_path() -> None:
    a, b = nics("10.0.0.1/24", "10.0.1.1/24", LO), nics("10.0.0.2/24", "10.0.1.2/24", LO)
    assert between(a, b) == ["tcp 10.0.0.1>10.0.0.2:5000", "tcp 10.0.1.1>10.0.1.2:5001"]


def test_the_order_of_interfaces_does_not_matter_across_subnets() -> None:
    a, b = nics("10.0.1.1/24", "10.0.0.1/24"), nics("10.0.0.2/24", "10.0.1.2/24")
    assert between(a, b) == ["tcp 10.0.0.1>10.0.0.2:5000", "tcp 10.0.1.1>10.0.1.2:5001"]


def test_several_interfaces_of_one_subnet_are_paired_in_turn() -> None:
    a, b = nics("10.0.0.1/24", "10.0.0.3/24"), nics("10.0.0.2/24", "10.0.0.4/24")
    assert between(a, b) == ["tcp 10.0.0.1>10.0.0.2:5000", "tcp 10.0.0.3>10.0.0.4:5001"]


def test_where_one_end_has_fewer_they_take_turns() -> None:
    a, b = nics("10.0.0.1/24", "10.0.0.3/24"), nics("10.0.0.2/24")
    assert between(a, b) == ["tcp 10.0.0.1>10.0.0.2:5000", "tcp 10.0.0.3>10.0.0.2:5000"]
    assert between(b, a) == ["tcp 10.0.0.2>10.0.0.1:5000", "tcp 10.0.0.2>10.0.0.3:5001"]


def test_every_path_has_each_kind_and_each_connection() -> None:
    a, b = nics("10.0.0.1/24", "10.0.1.1/24"), nics("10.0.0.2/24", "10.0.1.2/24")
    once = [
        "tcp 10.0.0.1>10.0.0.2:5000",
        "tcp 10.0.1.1>10.0.1.2:5001",
        "udp 10.0.0.1>10.0.0.2:5000",
        "udp 10.0.1.1>10.0.1.2:5001",
    ]
    assert between(a, b, kinds=("tcp", "udp"), connections=2) == once * 2


def test_bridges_of_the_same_address_on_two_hosts_are_no_path() -> None:
    a = nics("172.17.0.1/16", "10.0.0.1/24")
    b = nics("172.17.0.1/16", "10.0.0.2/24")
    assert between(a, b) == ["tcp 10.0.0.1>10.0.0.2:5001"]


def test_ranks_of_one_host_use_loopback_alone() -> None:
    a = nics("10.0.0.1/24", LO)
    assert between(a, a, one_host=True) == ["tcp 127.0.0.1>127.0.0.1:5001"]


def test_ranks_of_one_host_use_what_they_have_chosen() -> None:
    a = nics("127.0.1.1/24", "127.0.2.1/24")
    assert between(a, a, one_host=True, chosen=True) == [
        "tcp 127.0.1.1>127.0.1.1:5000",
        "tcp 127.0.2.1>127.0.2.1:5001",
    ]


def test_loopback_leads_to_no_other_host() -> None:
    assert between(nics(LO), nics(LO, "10.0.0.2/24")) == ["tcp any>10.0.0.2:5001"]


def test_without_a_common_subnet_one_rail_tries_all_addresses() -> None:
    a, b = nics("10.0.0.1/24"), nics("10.0.7.2/24", "10.0.8.2/24", LO)
    assert between(a, b) == ["tcp any>10.0.7.2:5000,10.0.8.2:5001"]
    assert between(a, b, kinds=("tcp", "udp")) == [
        "tcp any>10.0.7.2:5000,10.0.8.2:5001",
        "udp any>10.0.7.2:5000,10.0.8.2:5001",
    ]


def test_subnets_of_different_length_are_different() -> None:
    assert between(nics("10.0.0.1/16"), nics("10.0.0.2/24")) == ["tcp any>10.0.0.2:5000"]


def test_each_end_knows_which_interface_of_its_own_a_rail_uses() -> None:
    a, b = nics("10.0.1.1/24", "10.0.0.1/24"), nics("10.0.0.2/24", "10.0.1.2/24")
    rails = plan_rails(a, b, one_host=False, chosen=False, kinds=("tcp",), connections=1)
    assert [(r.caller_nic, r.listener_nic) for r in rails] == [(1, 0), (0, 1)]
    assert [rail.name for rail in rails] == ["tcp 10.0.0.1>10.0.0.2", "tcp 10.0.1.1>10.0.1.2"]


ADDRESSES = st.builds(
    lambda host, subnet, prefix: f"10.0.{subnet}.{host}/{prefix}",
    st.integers(1, 5),
    st.integers(0, 2),
    st.sampled_from((16, 24)),
)
HOSTS = st.lists(ADDRESSES, min_size=1, max_size=4, unique=True).map(lambda each: nics(*each))


@given(a=HOSTS, b=HOSTS, one_host=st.booleans(), chosen=st.booleans())
def test_there_is_always_a_path_and_it_is_between_the_two(
    a: tuple[Interface, ...], b: tuple[Interface, ...], one_host: bool, chosen: bool
) -> None:
    rails = plan_rails(a, b, one_host=one_host, chosen=chosen, kinds=("tcp",), connections=1)
    assert rails
    for rail in rails:
        assert rail.source in {"", *(interface.address for interface in a)}
        assert set(rail.targets) <= {(interface.address, interface.port) for interface in b}
        assert rail.source == "" or len(rail.targets) == 1


def test_an_address_with_its_prefix_stands_for_an_interface() -> None:
    assert local_interfaces(("127.0.1.1/24",)) == (
        Interface(name="127.0.1.1/24", address="127.0.1.1", prefix=24),
    )


def test_the_loopback_interface_is_found_by_its_name() -> None:
    assert local_interfaces(("lo",)) == (Interface(name="lo", address="127.0.0.1", prefix=8),)


def test_all_interfaces_that_are_up_are_found_loopback_last() -> None:
    assert local_interfaces(())[-1] == Interface(name="lo", address="127.0.0.1", prefix=8)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("none0", r"interface 'none0' has no IPv4 address; those that have: .*lo.*"),
        (
            "10.0.0/24",
            r"an interface must be a name or an IPv4 address with its prefix length, "
            r"as 10\.0\.0\.1/24, not '10\.0\.0/24'",
        ),
        ("203.0.113.77/24", r"203\.0\.113\.77 is not an address of this host: .+"),
    ],
)
def test_what_is_not_there_is_named(word: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"^{text}$"):
        local_interfaces((word,))
