"""Tests of links, NICs and ranks that are unlike their peers since the start of a job."""

from dataclasses import replace
from itertools import permutations
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from invented_network import NETWORKS, Network, Way, compared, told
from invented_records import failed, header, verdict
from made_records import MS_NS as MS
from made_records import SECOND_NS as S
from made_records import START_NS, link, operations

from slackline.causes import Kind, sites_of
from slackline.history import Job
from slackline.plan.collective import Collective
from slackline.records import GroupOpened, Record


@given(network=NETWORKS)
def test_even_networks_have_no_cause(tmp_path_factory: pytest.TempPathFactory, network: Network):
    assert told(tmp_path_factory.mktemp("job"), network) == []
    assert compared(network) == []


@given(network=NETWORKS, waits=st.floats(1.0, 8.0))
def test_ranks_that_share_busy_cores_are_no_slow_ranks(
    tmp_path_factory: pytest.TempPathFactory, network: Network, waits: float
):
    """Subtract waits from times where both scatter by more than the ranks compute."""
    busy = replace(network, core_waits=waits)
    assert told(tmp_path_factory.mktemp("job"), busy, linked=False, seconds=20) == []


@given(network=NETWORKS, data=st.data())
def test_links_whose_ends_are_late_are_no_slow_links(
    tmp_path_factory: pytest.TempPathFactory, network: Network, data: st.DataObject
):
    """Data wait in the queue of a slow TCP link, and not in that of a link with late ends."""
    network = replace(network, udp=False)
    share = data.draw(st.floats(0.1, 0.9), label="share of the rate")
    ways = data.draw(st.sets(st.sampled_from(network.ways), min_size=1), label="ways")
    late = replace(network, late=dict.fromkeys(ways, share))
    assert told(tmp_path_factory.mktemp("job"), late) == []
    assert compared(late) == []


@given(network=NETWORKS, data=st.data())
def test_one_fault_since_the_start_is_named(
    tmp_path_factory: pytest.TempPathFactory, network: Network, data: st.DataObject
):
    host = data.draw(st.integers(0, network.hosts - 1), label="host")
    way = data.draw(st.sampled_from(network.ways), label="way")
    share = data.draw(st.floats(0.1, 0.55 if network.udp else 0.7), label="share of the rate")
    least_lost = 0.012 if network.udp else 0.005
    lost = network.lost * 4 + data.draw(st.floats(least_lost, 0.05), label="more lost")
    far_ns = 4 * network.trip_ns + data.draw(st.integers(5, 60), label="delay in ms") * MS
    both = (way, way[::-1])
    of_host = network.of_host(host)
    low, high = sorted(way)
    nic, pair, one = f"NIC 0 of host node{host}", f"link {low}-{high}", "link {}>{}".format(*way)
    slow, far = dict.fromkeys(both, share), dict.fromkeys(both, far_ns)
    waits_ns = {way: 5 * MS, way[::-1]: 100_000}
    faults = [
        (replace(network, rates=dict.fromkeys(of_host, share)), nic, "carries"),
        (replace(network, rates=slow, waits_ns=waits_ns), one, "carries"),
        (replace(network, rates=slow), pair, "carries"),
        (replace(network, losses={way: lost}), one, "loses"),
        (replace(network, losses=dict.fromkeys(of_host, lost)), nic, "loses"),
        (replace(network, trips_ns=far, rates=slow), pair, "delay"),
        (replace(network, trips_ns=dict.fromkeys(of_host, far_ns)), nic, "delay"),
        (replace(network, computes={host: 1 / share + 0.2}), f"rank {host}", "slower"),
        (replace(network, pauses_ns={host: 60 * MS}), f"the data loader of rank {host}", "takes"),
    ]
    faulty, name, words = data.draw(st.sampled_from(faults), label="fault")
    causes = told(tmp_path_factory.mktemp("job"), faulty)
    assert [cause.name for cause in causes] == [name]
    (cause,) = causes
    assert words in cause.sentence
    assert ", since the start; " in cause.sentence
    assert cause.since_ns == START_NS
    kinds = {"NIC": Kind.NIC, "link": Kind.LINK, "rank": Kind.RANK, "the": Kind.LOADER}
    assert cause.kind is kinds[name.split()[0]]
    if cause.kind in (Kind.NIC, Kind.LINK):
        # Without probes the slower direction of a slow link is not known.
        (before,) = compared(faulty)
        assert before.name == (pair if faulty.waits_ns else name)
        assert words in before.sentence
        assert "since the start" not in before.sentence


@given(network=NETWORKS.filter(lambda each: not each.ring and each.hosts > 5), data=st.data())
def test_neighbours_that_carry_larger_messages_hide_no_slow_nic(
    tmp_path_factory: pytest.TempPathFactory, network: Network, data: st.DataObject
):
    """Compare the rates of neighbours with those of other neighbours."""
    network = replace(network, udp=False)
    more = data.draw(st.floats(1.5, 4.0), label="more between neighbours")
    host = data.draw(st.integers(0, network.hosts - 1), label="host")
    share = data.draw(st.floats(0.3, 0.7), label="share of the rate")
    usual = {way: more if (way[1] - way[0]) % network.hosts == 1 else 1.0 for way in network.ways}
    mine = network.of_host(host)
    rates = {way: rate * (share if way in mine else 1.0) for way, rate in usual.items()}
    (cause,) = told(tmp_path_factory.mktemp("job"), replace(network, rates=rates))
    assert cause.name == f"NIC 0 of host node{host}"
    assert told(tmp_path_factory.mktemp("job"), replace(network, rates=usual)) == []


@given(network=NETWORKS, data=st.data())
def test_a_rank_that_is_late_for_its_tcp_rails_is_named_before_its_nic(
    tmp_path_factory: pytest.TempPathFactory, network: Network, data: st.DataObject
):
    """Slow a rank by far: it takes its data late, so that its links carry less."""
    network = replace(network, udp=False)
    host = data.draw(st.integers(0, network.hosts - 1), label="host")
    slower = data.draw(st.one_of(st.floats(1.0, 1.25), st.floats(2.3, 4.0)), label="slower")
    rates = dict.fromkeys(network.of_host(host), 0.3)
    late = replace(network, computes={host: slower}, rates=rates)
    (cause,) = told(tmp_path_factory.mktemp("job"), late)
    assert cause.name == (f"rank {host}" if slower > 2 else f"NIC 0 of host node{host}")


@given(network=NETWORKS, data=st.data())
def test_a_link_whose_slower_direction_shows_later_stays_one_cause(
    tmp_path_factory: pytest.TempPathFactory, network: Network, data: st.DataObject
):
    way = data.draw(st.sampled_from(network.ways), label="way")
    rates = dict.fromkeys((way, way[::-1]), 0.3)
    slow = replace(network, rates=rates, waits_ns={way: 5 * MS}, waits_from_s=12)
    (cause,) = told(tmp_path_factory.mktemp("job"), slow, seconds=24)
    low, high = sorted(way)
    assert cause.name == f"link {low}-{high}"


@given(network=NETWORKS, data=st.data())
def test_two_sites_are_no_fault(
    tmp_path_factory: pytest.TempPathFactory, network: Network, data: st.DataObject
):
    cut = data.draw(st.integers(2, network.hosts - 2), label="hosts of one site")
    far = [way for way in network.ways if (way[0] < cut) != (way[1] < cut)]
    trips_ns = dict.fromkeys(far, 4 * network.trip_ns + 30 * MS)
    sites = replace(network, trips_ns=trips_ns)
    assert told(tmp_path_factory.mktemp("job"), sites) == []
    assert compared(sites) == []


PAIRS = st.builds(
    Network,
    hosts=st.just(2),
    ring=st.just(False),
    seed=st.integers(0, 1000),
    rate_bps=st.sampled_from([60e6, 9e9]),
    udp=st.booleans(),
)


@given(network=PAIRS, data=st.data())
def test_a_slow_rail_of_two_hosts_is_named_by_their_other_rails(
    tmp_path_factory: pytest.TempPathFactory, network: Network, data: st.DataObject
):
    """Compare a rail of two hosts with the same link on another rail: there is no third host."""
    slow = data.draw(st.integers(0, 2), label="slow rail")
    share = data.draw(st.floats(0.05, 0.3), label="share of the rate")
    ways = data.draw(st.sampled_from([[(0, 1)], [(1, 0)], [(0, 1), (1, 0)]]), label="ways")
    negotiated = data.draw(st.sampled_from([{}, {1: 100_000_000}]), label="negotiated")
    rails = [replace(network, seed=network.seed + number) for number in range(3)]
    rails[slow] = replace(
        network, rates=dict.fromkeys(ways, share), negotiated_bps=negotiated, trip_ns=150_000
    )
    (cause,) = told(tmp_path_factory.mktemp("job"), rails[0], beside=rails[1:])
    link = "link 0-1" if len(ways) > 1 else "link {}>{}".format(*ways[0])
    name = f"NIC {slow} of host node1" if negotiated else f"{link} on rail {slow}"
    assert cause.name == name
    assert ", since the start; another rail carries " in cause.sentence
    ending = "; it has negotiated 100 Mbit/s, other NICs 1 Gbit/s"
    assert cause.sentence.endswith(ending) == bool(negotiated)


@given(network=PAIRS, data=st.data())
def test_a_slow_rail_between_two_hosts_of_several_ranks_each_is_one_cause(
    tmp_path_factory: pytest.TempPathFactory, network: Network, data: st.DataObject
):
    split = data.draw(st.integers(1, 3), label="ranks of host a")
    ranks = split + data.draw(st.integers(1 if split > 1 else 2, 3), label="ranks of host b")
    names = ["a" if rank < split else "b" for rank in range(ranks)]
    usual = replace(network, hosts=ranks)
    between = [way for way in usual.ways if (way[0] < split) != (way[1] < split)]
    less = data.draw(st.booleans(), label="the NIC of host b has negotiated less")
    slow = replace(
        usual,
        rates=dict.fromkeys(between, data.draw(st.floats(0.05, 0.3), label="share of the rate")),
        negotiated_bps=dict.fromkeys(range(split, ranks), 100_000_000) if less else {},
        trip_ns=150_000,
    )
    (cause,) = told(
        tmp_path_factory.mktemp("job"), usual, names=names, together=True, beside=[slow]
    )
    assert cause.name == ("NIC 1 of host b" if less else "rail 1 between host a and host b")
    assert cause.ranks == tuple(range(split if less else 0, ranks))


@given(network=PAIRS, data=st.data())
def test_rails_of_two_hosts_with_late_ends_or_with_other_nics_are_no_fault(
    tmp_path_factory: pytest.TempPathFactory, network: Network, data: st.DataObject
):
    share = data.draw(st.floats(0.1, 0.9), label="rate that late ends leave")
    late = dict.fromkeys([data.draw(st.sampled_from(network.ways), label="late")], share)
    rails = [replace(network, seed=network.seed + number, late=late) for number in range(2)]
    if data.draw(st.booleans(), label="rail 1 has NICs of another rate"):
        rails[1] = replace(
            rails[1],
            rates=dict.fromkeys(network.ways, 0.1),
            negotiated_bps=dict.fromkeys((0, 1), 100_000_000),
            trip_ns=150_000,
        )
    assert told(tmp_path_factory.mktemp("job"), rails[0], beside=rails[1:]) == []


@given(network=NETWORKS, data=st.data())
def test_rates_within_a_host_are_not_compared(
    tmp_path_factory: pytest.TempPathFactory, network: Network, data: st.DataObject
):
    """Name rates between hosts alone: within a host, cores copy the bytes, and share unevenly."""
    some = data.draw(st.lists(st.sampled_from(network.ways), min_size=1, unique=True), label="slow")
    rates = {way: data.draw(st.floats(0.1, 0.6)) for way in some}
    names = ["vm"] * network.hosts
    shared = replace(network, rates=rates, within_host=True)
    assert told(tmp_path_factory.mktemp("job"), shared, names=names) == []


def test_two_sites_are_described_with_their_distance(tmp_path: Path):
    far = {way: 60 * MS for way in permutations(range(5), 2) if (way[0] < 2) != (way[1] < 2)}
    network = Network(hosts=5, ring=False, seed=3, trips_ns=far)
    job = Job(tmp_path)
    for rank in range(5):
        job.take(header(rank))
    for way in network.ways:
        job.take(link(*way, S, least_round_trip_ns=far.get(way, 200_000)))
    assert sites_of(job) == (
        "hosts node0 and node1 and hosts node2, node3 and node4 are 30 ms apart"
    )
    near = Job(tmp_path)
    for rank in range(5):
        near.take(header(rank))
    for way in network.ways:
        near.take(link(*way, S, least_round_trip_ns=200_000))
    assert sites_of(near) == ""


def test_hosts_of_a_lab_have_numbers(tmp_path: Path):
    network = Network(hosts=4, ring=False, seed=3)
    faulty = replace(network, rates=dict.fromkeys(network.of_host(2), 0.1))
    (cause,) = told(tmp_path, faulty, names=["machine"] * 4)
    assert cause.sentence == (
        "NIC 0 of host 2: it carries 6.02 Mbit/s while data waits, since the start; "
        "links between other hosts carry 59.9 Mbit/s"
    )


def test_a_slow_nic_that_has_negotiated_less_than_others_is_told_with_both_rates(tmp_path: Path):
    network = Network(hosts=4, ring=False, seed=3)
    slow = dict.fromkeys(network.of_host(2), 0.1)
    faulty = replace(network, rates=slow, negotiated_bps={2: 100_000_000})
    (cause,) = told(tmp_path, faulty)
    assert cause.sentence == (
        "NIC 0 of host node2: it carries 6.02 Mbit/s while data waits, since the start; links "
        "between other hosts carry 59.9 Mbit/s; it has negotiated 100 Mbit/s, other NICs 1 Gbit/s"
    )


def test_a_rank_of_one_host_is_compared_although_no_wire_joins_the_ranks(tmp_path: Path):
    network = Network(hosts=4, ring=False, seed=3, computes={2: 2.0})
    (cause,) = told(tmp_path, network, names=["machine"] * 4, linked=False)
    assert (cause.kind, cause.name) == (Kind.RANK, "rank 2")
    assert ", since the start; " in cause.sentence


@pytest.mark.parametrize("members", [(0, 1), (2, 3), (0, 1, 2)])
def test_ranks_with_groups_of_their_own_are_not_compared(tmp_path: Path, members: tuple[int, ...]):
    """Ranks in a group of their own may do other work in a step than the ranks outside it."""
    network = Network(hosts=4, ring=False, seed=3, computes={2: 2.0})
    events: dict[int, list[Record]] = {0: []}
    for rank in members:
        size = len(members)
        group = GroupOpened(rank=rank, time_ns=START_NS, size=size, epoch=2, members=members)
        row = (1, 0, -1, 400, 9, 2, -1, 0, 0, 1, 1, *(1, 2, 3), 0, 0)
        events[0] += [group, operations(rank, row)]
    assert told(tmp_path, network, events=events) == []


@pytest.mark.parametrize("receives", [0, 1])
def test_ranks_that_exchange_messages_are_not_compared(tmp_path: Path, receives: int):
    network = Network(hosts=4, ring=False, seed=3, computes={2: 2.0})
    message = (Collective.POINT_TO_POINT, receives, 1, 400, 9, 1, 5, 0, 0, 0, 1, *(1, 2, 3), 0, 0)
    assert told(tmp_path, network, events={0: [operations(0, message)]}) == []


def test_a_job_that_loads_data_for_a_minute_first_is_slow_since_the_start(tmp_path: Path):
    network = Network(hosts=4, ring=False, seed=3, idle_s=60)
    slow = replace(network, rates=dict.fromkeys(network.of_host(2), 0.3))
    (cause,) = told(tmp_path, slow, seconds=75)
    assert (cause.name, cause.since_ns) == ("NIC 0 of host node2", START_NS)
    assert ", since the start; " in cause.sentence
    slow_rank = replace(network, computes={1: 2.0})
    (cause,) = told(tmp_path, slow_rank, seconds=75)
    assert (cause.name, cause.since_ns) == ("rank 1", START_NS)


def test_a_dead_rank_is_named_although_its_nic_has_always_been_slow(tmp_path: Path):
    network = Network(hosts=4, ring=False, seed=3, killed={2: 12})
    slow = replace(network, rates=dict.fromkeys(network.of_host(2), 0.3))
    events: dict[int, list[Record]] = {12: [failed(rank, 12 * S) for rank in (0, 1, 3)]}
    events[13] = [
        verdict(*way, 13 * S, "silent", rank=rank)
        for rank in (0, 1, 3)
        for way in ((rank, 2), (2, rank))
    ]
    causes = told(tmp_path, slow, seconds=20, events=events)
    assert [(cause.kind, cause.name) for cause in causes] == [
        (Kind.NIC, "NIC 0 of host node2"),
        (Kind.DEAD, "rank 2"),
    ]


def test_a_nic_that_is_cut_is_named_once_more_although_it_has_always_been_slow(tmp_path: Path):
    network = Network(hosts=4, ring=False, seed=3)
    slow = replace(network, rates=dict.fromkeys(network.of_host(2), 0.3))
    cut: list[Record] = [verdict(*way, 12 * S, "cut") for way in network.of_host(2)]
    events = {8: [verdict(0, 2, 8 * S, "slow")], 12: cut}
    always, later = told(tmp_path, slow, seconds=18, events=events)
    assert always.name == later.name == "NIC 0 of host node2"
    assert ", since the start; " in always.sentence
    assert "all 3 links in use over it are cut" in later.sentence


@given(network=NETWORKS.filter(lambda network: not network.ring), data=st.data())
def test_links_with_a_few_small_messages_are_no_slow_links(
    tmp_path_factory: pytest.TempPathFactory, network: Network, data: st.DataObject
):
    """Let some links carry a few bytes a second, as those of a flag that ends a pipeline do."""
    network = replace(network, udp=False, rate_bps=60e6)
    ways = data.draw(st.sets(st.sampled_from(network.ways), min_size=1, max_size=5), label="ways")
    assert told(tmp_path_factory.mktemp("job"), replace(network, seldom=frozenset(ways))) == []


MESSAGES = {
    0: [operations(0, (Collective.POINT_TO_POINT, 0, 1, 400, 9, 1, 5, 0, 0, 0, 1, 1, 2, 3, 0, 0))]
}


def pipeline(network: Network, data: st.DataObject, slow: Way | None = None) -> Network:
    """Return a network in which neighbours exchange long messages and other ranks short ones.

    A host that sends to two neighbours shares its NIC between them. Bursts to other ranks find
    empty queues. `slow` is a direction that carries less.
    """
    draw = Random(data.draw(st.integers(0, 1000), label="traffic"))
    last = network.hosts - 1
    rates, busy = {}, {}
    for way in network.ways:
        if abs(way[0] - way[1]) == 1:
            ends = sum(rank in (0, last) for rank in way)
            rates[way] = (1.6 if ends else 1.0) * draw.uniform(0.85, 1.15)
            if way == slow:
                rates[way] = 0.35
            busy[way] = 1 / rates[way]  # All neighbours exchange the same bytes.
        else:
            rates[way], busy[way] = draw.uniform(2.2, 3.0), draw.uniform(0.04, 0.1)
    return replace(network, udp=False, rate_bps=60e6, rates=rates, busy=busy, lost=0.0)


@given(network=NETWORKS.filter(lambda network: not network.ring), data=st.data())
def test_the_busy_links_of_a_pipeline_are_no_slow_links(
    tmp_path_factory: pytest.TempPathFactory, network: Network, data: st.DataObject
):
    network = pipeline(network, data)
    assert told(tmp_path_factory.mktemp("job"), network, events=MESSAGES) == []


@given(
    network=NETWORKS.filter(lambda network: not network.ring and network.hosts > 5),
    data=st.data(),
)
def test_a_slow_link_of_a_pipeline_is_named(
    tmp_path_factory: pytest.TempPathFactory, network: Network, data: st.DataObject
):
    one = data.draw(st.integers(1, network.hosts - 3), label="from")
    way = (one, one + 1) if data.draw(st.booleans(), label="forwards") else (one + 1, one)
    slow = pipeline(network, data, way)
    (cause,) = told(tmp_path_factory.mktemp("job"), slow, events=MESSAGES)
    assert cause.name == "link {}>{}".format(*way)
