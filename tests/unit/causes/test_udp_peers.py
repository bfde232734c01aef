"""Tests of links, NICs and ranks of UDP rails that are unlike their peers."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from invented_network import NETWORKS, SECONDS, UDP_NETWORKS, Network, Way, compared, told
from invented_records import verdict
from made_records import MS_NS as MS
from made_records import SECOND_NS as S
from made_records import operations

from slackline.plan.collective import Collective


@given(network=UDP_NETWORKS, data=st.data())
def test_shares_that_udp_rails_take_of_a_path_are_no_fault(
    tmp_path_factory: pytest.TempPathFactory, network: Network, data: st.DataObject
):
    """UDP rails fill queues, which drop packets, and share a path unevenly."""
    share = data.draw(st.floats(0.67, 1.0), label="least share of the rate")
    lost = data.draw(st.floats(0.0, 0.1), label="most lost")
    random = Random(network.seed)
    rates = {way: random.uniform(share, 1.0) for way in network.ways}
    assume(not any(_apart(network, rates, host) for host in range(network.hosts)))
    ways = random.sample(network.ways, len(network.ways))
    losses = {way: lost / 1.25**place for place, way in enumerate(ways)}
    uneven = replace(network, rates=rates, losses=losses)
    assert told(tmp_path_factory.mktemp("job"), uneven) == []
    assert compared(uneven) == []


def _apart(network: Network, rates: Mapping[Way, float], host: int) -> bool:
    """Return whether all links of a host may carry less than each link between other hosts."""
    mine = network.of_host(host)
    parts = [mine, [way for way in mine if way[0] == host], [way for way in mine if way[1] == host]]
    least = min((rates[way] for way in network.ways if host not in way), default=0.0)
    return any(max(rates[way] for way in part) < 0.93 * least for part in parts)


@given(network=UDP_NETWORKS.filter(lambda network: not network.ring), data=st.data())
def test_a_nic_whose_udp_links_all_carry_less_than_all_others_is_named(
    tmp_path_factory: pytest.TempPathFactory, network: Network, data: st.DataObject
):
    host = data.draw(st.integers(0, network.hosts - 1), label="host")
    share = data.draw(st.floats(0.6, 0.75), label="share of the rate")
    slow = replace(network, rates=dict.fromkeys(network.of_host(host), share))
    (cause,) = told(tmp_path_factory.mktemp("job"), slow)
    assert cause.name == f"NIC 0 of host node{host}"
    assert " while data waits, since the start; " in cause.sentence


@given(network=UDP_NETWORKS, data=st.data())
def test_losses_of_several_udp_links_that_no_host_joins_are_no_fault(
    tmp_path_factory: pytest.TempPathFactory, network: Network, data: st.DataObject
):
    """Name no link where several stand out: queues drop packets of many links, a fault of one."""
    lost = data.draw(st.floats(0.012, 0.06), label="lost")
    apart = [(host, (host + 1) % network.hosts) for host in range(network.hosts)]
    ways = data.draw(st.sets(st.sampled_from(apart), min_size=3, max_size=4), label="ways")
    scattered = replace(network, losses=dict.fromkeys(ways, 4 * network.lost + lost))
    joined = [host for host in range(network.hosts) if set(network.of_host(host)) <= ways]
    assume(not joined)
    assert told(tmp_path_factory.mktemp("job"), scattered) == []
    assert compared(scattered) == []


@given(network=UDP_NETWORKS, data=st.data())
def test_bursts_of_loss_on_a_udp_rail_are_no_fault(
    tmp_path_factory: pytest.TempPathFactory, network: Network, data: st.DataObject
):
    """Filling a queue loses many packets in some seconds, so that calm ones tell the loss."""
    way = data.draw(st.sampled_from(network.ways), label="way")
    seconds = data.draw(st.sets(st.integers(0, SECONDS - 1), max_size=3), label="seconds")
    bursts = [replace(network.report(way, s, Random(s)), resent=2000) for s in sorted(seconds)]
    events = {burst.at_ns // S: [burst] for burst in bursts}
    assert told(tmp_path_factory.mktemp("job"), network, events=events) == []


@given(network=NETWORKS, data=st.data())
def test_a_rank_that_is_late_for_its_udp_rails_is_named_before_its_nic(
    tmp_path_factory: pytest.TempPathFactory, network: Network, data: st.DataObject
):
    """Slow a rank by far: it reads its UDP rails late, so that the kernel drops their packets."""
    host = data.draw(st.integers(0, network.hosts - 1), label="host")
    slower = data.draw(st.one_of(st.floats(1.0, 1.25), st.floats(2.3, 4.0)), label="slower")
    ways = network.of_host(host)
    late = replace(
        network,
        computes={host: slower},
        rates=dict.fromkeys(ways, 0.3),
        losses=dict.fromkeys(ways, network.lost * 4 + 0.1),
    )
    causes = told(tmp_path_factory.mktemp("job"), late)
    rank = network.udp and slower > 2
    assert [cause.name for cause in causes] == [
        f"rank {host}" if rank else f"NIC 0 of host node{host}"
    ]


@given(network=UDP_NETWORKS, data=st.data())
def test_a_udp_link_that_begins_to_lose_packets_as_all_others_do_is_no_fault(
    tmp_path_factory: pytest.TempPathFactory, network: Network, data: st.DataObject
):
    """Fill queues by a new pattern of traffic on all links, or lose packets on one link alone."""
    way = data.draw(st.sampled_from(network.ways), label="way")
    common, alone = data.draw(st.sampled_from([(0.06, 0.0), (0.0, 0.06)]), label="losses")
    busier = replace(network, lost=common, losses={way: alone})
    told_of = {8: [verdict(*way, 8 * S, "losing")]}
    causes = told(tmp_path_factory.mktemp("job"), busier, events=told_of)
    assert [cause.name for cause in causes] == ([] if common else ["link {}>{}".format(*way)])


@pytest.mark.parametrize("udp", [False, True])
def test_udp_rails_are_compared_only_while_all_ranks_send_alike(tmp_path: Path, udp: bool):
    """Name no UDP link of a pipeline, where traffic decides what each link carries and loses."""
    network = Network(hosts=4, ring=False, seed=3, udp=udp)
    slow = replace(network, rates=dict.fromkeys(network.of_host(2), 0.3), losses={(0, 1): 0.05})
    message = (Collective.POINT_TO_POINT, 0, 1, 400, 9, 1, 5, 0, 0, 0, 1, *(1, 2, 3), 0, 0)
    causes = told(tmp_path, slow, events={0: [operations(0, message)]})
    names = {cause.name for cause in causes}
    assert names == (set() if udp else {"NIC 0 of host node2", "link 0>1"})


@given(network=UDP_NETWORKS, data=st.data())
def test_a_udp_link_is_slow_if_its_data_wait_longer_than_those_of_all_others(
    tmp_path_factory: pytest.TempPathFactory, network: Network, data: st.DataObject
):
    """Add less than a queue of the other links holds, or less than a process waits for a core."""
    way = data.draw(st.sampled_from(network.ways), label="way")
    queued_ns = 52_000 * 8e9 / network.rate_bps
    usual = data.draw(st.booleans(), label="usual")
    if usual:
        over_ns = data.draw(st.floats(0.5, 0.95), label="part") * max(2 * queued_ns, 4 * MS)
    else:
        over_ns = data.draw(st.floats(1.2, 3.0), label="times") * max(2 * queued_ns, 4 * MS)
    told_of = {8: [verdict(*way, 8 * S, "slow", over_ns=round(over_ns))]}
    causes = told(tmp_path_factory.mktemp("job"), network, events=told_of)
    assert [cause.name for cause in causes] == ([] if usual else ["link {}>{}".format(*way)])
