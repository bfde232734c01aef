"""Tests of the rails (paths to a peer) on which two ranks agree from what each knows about the
other's interfaces."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from slackline.nic.connect._addresses import Interface
from slackline.nic.connect._paths import (
    Attempt,
    RailPlan,
    adopted,
    extend_rails,
    pair_of,
    plan_rails,
    why_no_path,
)


def nics(*texts: str) -> tuple[Interface, ...]:
    """Return interfaces for texts like "10.0.0.1/24 fd00::1/64", one text for each NIC.

    The i-th NIC has the number i + 1, and the port of all its addresses is 5000 + i.
    """
    return tuple(
        Interface(
            name=f"n{number}",
            address=word.split("/")[0],
            prefix=int(word.split("/")[1]),
            port=5000 + number,
            index=number + 1,
        )
        for number, text in enumerate(texts)
        for word in text.split()
    )


def tried(attempt: Attempt) -> str:
    """Return a connect as a text: source, target, and the device that the socket is bound to."""
    source = attempt.source or "any"
    if attempt.scope:
        source += f"%{attempt.scope}"
    device = f" by {attempt.device}" if attempt.device else ""
    return f"{source}>{attempt.address}:{attempt.port}{device}{' spare' if attempt.spare else ''}"


def shown(rails: tuple[RailPlan, ...]) -> list[str]:
    """Return for each rail its kind and the connects that its caller tries."""
    assert [rail.index for rail in rails] == list(range(len(rails)))
    found = []
    for rail in rails:
        assert rail.path is not None
        found.append(f"{rail.kind} {', '.join(tried(each) for each in rail.path.there)}")
    return found


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
    assert between(a, b) == [
        "tcp 10.0.0.1>10.0.0.2:5000 by 1, 10.0.0.1>10.0.0.2:5000",
        "tcp 10.0.0.3>10.0.0.4:5001 by 2, 10.0.0.3>10.0.0.4:5001",
    ]


def test_where_one_end_has_fewer_they_take_turns() -> None:
    a, b = nics("10.0.0.1/24", "10.0.0.3/24"), nics("10.0.0.2/24")
    assert [rail.split(", ")[1] for rail in between(a, b)] == [
        "10.0.0.1>10.0.0.2:5000",
        "10.0.0.3>10.0.0.2:5000",
    ]
    assert [rail.split(", ")[1] for rail in between(b, a)] == [
        "10.0.0.2>10.0.0.1:5000",
        "10.0.0.2>10.0.0.3:5001",
    ]


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
    assert between(nics(LO), nics(LO, "10.0.0.2/24")) == []
    assert between(nics(LO, "10.1.0.1/24"), nics(LO, "10.0.0.2/24")) == [
        "tcp 10.1.0.1>10.0.0.2:5001 by 2, any>10.0.0.2:5001 spare"
    ]


def test_two_nics_have_one_path_for_all_their_addresses() -> None:
    a = nics("10.0.0.1/24 10.1.0.1/24 fd00::1/64 fe80::1/64")
    b = nics("10.0.0.2/24 10.1.0.2/24 fd00::2/64 fe80::2/64")
    assert between(a, b) == [
        "tcp 10.0.0.1>10.0.0.2:5000, 10.1.0.1>10.1.0.2:5000, fd00::1>fd00::2:5000, "
        "fe80::1%1>fe80::2:5000"
    ]


def test_ipv6_subnets_are_paths_as_ipv4_subnets_are() -> None:
    a, b = nics("fd00::1/64", "fd00:0:0:1::1/64"), nics("fd00::2/64", "fd00:0:0:1::2/64")
    assert between(a, b) == ["tcp fd00::1>fd00::2:5000", "tcp fd00:0:0:1::1>fd00:0:0:1::2:5001"]


def test_one_common_family_is_enough() -> None:
    assert between(nics("10.0.0.1/24 fd00::1/64"), nics("fd00::2/64")) == [
        "tcp fd00::1>fd00::2:5000"
    ]


def test_link_local_addresses_are_tried_from_each_nic_beginning_with_its_turn() -> None:
    a, b = nics("fe80::1/64", "fe80::11/64"), nics("fe80::2/64", "fe80::12/64")
    assert between(a, b) == [
        "tcp fe80::1%1>fe80::2:5000 by 1, fe80::1%1>fe80::12:5001 by 1",
        "tcp fe80::11%2>fe80::12:5001 by 2, fe80::11%2>fe80::2:5000 by 2",
    ]


def test_without_a_common_subnet_each_nic_tries_all_and_the_first_one_any_route() -> None:
    a, b = nics("10.0.0.1/24", "10.0.1.1/24"), nics("10.0.7.2/24", "10.0.8.2/24", LO)
    assert between(a, b) == [
        "tcp 10.0.0.1>10.0.7.2:5000 by 1, 10.0.0.1>10.0.8.2:5001 by 1, any>10.0.7.2:5000 spare, "
        "any>10.0.8.2:5001 spare",
        "tcp 10.0.1.1>10.0.8.2:5001 by 2, 10.0.1.1>10.0.7.2:5000 by 2",
    ]
    assert [rail.split()[0] for rail in between(a, b, kinds=("tcp", "udp"))] == [
        "tcp",
        "tcp",
        "udp",
        "udp",
    ]


def test_nics_without_a_common_subnet_are_tried_beside_those_with_one() -> None:
    a, b = nics("10.0.0.1/24", "10.1.0.1/31"), nics("10.0.0.2/24", "10.1.0.3/31")
    assert between(a, b) == [
        "tcp 10.0.0.1>10.0.0.2:5000",
        "tcp 10.1.0.1>10.1.0.3:5001 by 2",
    ]
    rails = plan_rails(a, b, one_host=False, chosen=False, kinds=("tcp",), connections=1)
    assert [rail.trial for rail in rails] == [False, True]


def test_subnets_of_different_length_are_different() -> None:
    assert between(nics("10.0.0.1/16"), nics("10.0.0.2/24")) == [
        "tcp 10.0.0.1>10.0.0.2:5000 by 1, any>10.0.0.2:5000 spare"
    ]


def test_a_vlan_and_the_device_below_it_are_one_cable() -> None:
    def host(number: int) -> tuple[Interface, ...]:
        plain, vlan = nics(f"10.0.0.{number}/24", f"10.0.1.{number}/24")
        return replace(plain, cable="n0"), replace(vlan, cable="n0")

    assert between(host(1), host(2)) == ["tcp 10.0.0.1>10.0.0.2:5000, 10.0.1.1>10.0.1.2:5001"]


def test_tunnels_are_used_only_where_nothing_else_leads_to_the_peer() -> None:
    def host(outer: str, inner: str) -> tuple[Interface, ...]:
        cable, tunnel = nics(outer, inner)
        return cable, replace(tunnel, overlay=True)

    assert between(host("10.0.0.1/24", "10.9.0.1/24"), host("10.0.0.2/24", "10.9.0.2/24")) == [
        "tcp 10.0.0.1>10.0.0.2:5000",
        "tcp 10.9.0.1>10.9.0.2:5001 by 2 spare",
    ]
    assert between(host("10.0.0.1/24", "10.9.0.1/24"), host("10.1.0.2/24", "10.9.0.2/24"))[0] == (
        "tcp 10.9.0.1>10.9.0.2:5001"
    )


def test_hosts_without_a_common_family_have_no_rail() -> None:
    a, b = nics("10.0.0.1/24", LO), nics("fd00::2/64", LO)
    assert between(a, b) == []
    assert why_no_path(a, b) == (
        "no address of one can be reached from the other, by family and by subnet; this rank's "
        "addresses: 10.0.0.1; the other's: fd00::2"
    )


def test_a_rank_that_listens_at_loopback_alone_is_told_how_to_be_reached() -> None:
    assert why_no_path(nics(LO), nics("10.0.0.2/24", LO)) == (
        "no address of one can be reached from the other, by family and by subnet; this rank's "
        "addresses: none but loopback; the other's: 10.0.0.2; ranks that `slackline run` starts on "
        "one host listen at loopback alone, unless SLACKLINE_LISTEN=all is set"
    )


def test_an_address_that_both_hosts_have_is_no_path_but_others_of_its_nic_are() -> None:
    a = nics("10.0.0.9/32 10.0.0.1/24", "172.17.0.1/16 fe80::5/64")
    b = nics("10.0.0.9/32 10.0.0.2/24", "172.17.0.1/16 fe80::6/64")
    assert between(a, b) == ["tcp 10.0.0.1>10.0.0.2:5000"]


def test_rails_keep_their_index_when_a_nic_comes_and_another_one_goes() -> None:
    def plans(*texts: str) -> tuple[RailPlan, ...]:
        ends = (nics(*(text.format(host) for text in texts)) for host in (1, 2))
        return plan_rails(*ends, one_host=False, chosen=False, kinds=("tcp",), connections=1)

    before = plans("10.0.1.{}/24", "10.0.2.{}/24")
    after = extend_rails(before, plans("10.0.1.{}/24", "10.0.2.{}/24", "10.0.0.{}/24"))
    assert {rail.name: rail.index for rail in after} == {
        "tcp 10.0.1.1>10.0.1.2": 0,
        "tcp 10.0.2.1>10.0.2.2": 1,
        "tcp 10.0.0.1>10.0.0.2": 2,
    }


def test_a_listener_names_the_nics_of_a_rail_that_only_its_caller_has_planned() -> None:
    a, b = nics("10.0.0.1/24", "10.0.1.1/24"), nics("10.0.0.2/24", "10.0.1.2/24")
    rail = adopted(7, "udp", a, b, ("10.0.1.1", "10.0.1.2"))
    assert rail.path is not None
    assert (rail.index, rail.kind, rail.path.caller_nic, rail.path.listener_nic) == (7, "udp", 1, 1)
    assert [tried(each) for each in rail.path.back] == ["10.0.1.2>10.0.1.1:5001"]
    assert pair_of(a, b, ("10.0.1.1", "10.0.1.2")) == "n1>n1"
    assert pair_of(a, b, ("10.0.1.9", "10.0.1.2")) == "10.0.1.9>n1"


def test_each_end_knows_which_interface_of_its_own_a_rail_uses() -> None:
    a, b = nics("10.0.1.1/24", "10.0.0.1/24"), nics("10.0.0.2/24", "10.0.1.2/24")
    rails = plan_rails(a, b, one_host=False, chosen=False, kinds=("tcp",), connections=1)
    assert [(r.path.caller_nic, r.path.listener_nic) for r in rails if r.path] == [(1, 0), (0, 1)]
    assert [rail.name for rail in rails] == ["tcp 10.0.0.1>10.0.0.2", "tcp 10.0.1.1>10.0.1.2"]


ADDRESSES = st.builds(
    lambda host, subnet, prefix: f"10.0.{subnet}.{host}/{prefix}",
    st.integers(1, 5),
    st.integers(0, 2),
    st.sampled_from((16, 24)),
)
HOSTS = st.lists(ADDRESSES, min_size=1, max_size=4, unique=True).map(lambda each: nics(*each))


@given(a=HOSTS, b=HOSTS, one_host=st.booleans(), chosen=st.booleans())
def test_paths_lead_from_one_to_the_other_and_no_two_have_the_same_nics(
    a: tuple[Interface, ...], b: tuple[Interface, ...], one_host: bool, chosen: bool
) -> None:
    rails = plan_rails(a, b, one_host=one_host, chosen=chosen, kinds=("tcp",), connections=1)
    shared = {i.address for i in a} & {i.address for i in b}
    reachable = {i.address for i in b} - (set() if one_host else shared)
    own = {i.address for i in a} - (set() if one_host else shared)
    assert bool(rails) == (bool(reachable and own) and (chosen or not one_host))
    for rail in rails:
        assert rail.path is not None
        for attempt in rail.path.there:
            assert attempt.source in {"", *own}
            assert (attempt.address, attempt.port) in {(i.address, i.port) for i in b}
            assert attempt.address in reachable
    keys = [rail.key for rail in rails]
    assert len(set(keys)) == len(keys)
