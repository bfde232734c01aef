"""Tests of links, NICs and ranks that are unlike their peers since the start of a job."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from invented_records import failed, header, opened, step, verdict
from made_records import MS_NS as MS
from made_records import SECOND_NS as S
from made_records import START_NS, link, operations

from slackline.causes import Cause, Diagnosis, Kind, compare_links, sites_of
from slackline.history import Job
from slackline.plan.collective import Collective
from slackline.records import ClockOffset, GroupOpened, LinkReport, Record

SECONDS = 14
STEP_NS = 250 * MS
Way = tuple[int, int]


@dataclass(frozen=True)
class Network:
    """An invented network, with the directions and ranks that differ from the usual."""

    hosts: int
    ring: bool
    seed: int
    rate_bps: float = 60e6
    trip_ns: int = 200_000
    lost: float = 0.0
    udp: bool = False
    within_host: bool = False
    """Whether all ranks are processes of one host that use its addresses."""
    rates: Mapping[Way, float] = field(default_factory=dict)
    """The part of the usual rate that a direction carries."""
    losses: Mapping[Way, float] = field(default_factory=dict)
    trips_ns: Mapping[Way, int] = field(default_factory=dict)
    late: Mapping[Way, float] = field(default_factory=dict)
    """The part of the usual rate that is left where the ends of a direction are late."""
    waits_ns: Mapping[Way, int] = field(default_factory=dict)
    """The time that the median probe waits in a direction."""
    waits_from_s: int = 0
    """The second from which probes wait."""
    negotiated_bps: Mapping[int, int] = field(default_factory=dict)
    computes: Mapping[int, float] = field(default_factory=dict)
    """The factor of a rank's own time."""
    core_waits: float = 0.0
    """The usual wait of a rank for a core in a step, as a part of its own time."""
    pauses_ns: Mapping[int, int] = field(default_factory=dict)
    """The time of a rank between two steps."""
    idle_s: int = 0
    """The seconds in which nothing is sent and no step is taken."""
    killed: Mapping[int, int] = field(default_factory=dict)
    """The second from which a rank writes nothing."""

    @property
    def ways(self) -> list[Way]:
        pairs = list(permutations(range(self.hosts), 2))
        if not self.ring:
            return pairs
        return [way for way in pairs if (way[0] - way[1]) % self.hosts in (1, self.hosts - 1)]

    def of_host(self, host: int) -> list[Way]:
        return [way for way in self.ways if host in way]

    def report(self, way: Way, second: int, random: Random) -> LinkReport:
        carried = self.rate_bps * self.rates.get(way, 1.0)
        rate = carried * self.late.get(way, 1.0) * random.uniform(0.96, 1.04)
        busy_ns = random.randrange(300 * MS, 900 * MS)
        packets = 5000
        lost = self.lost + self.losses.get(way, 0.0)
        if self.udp:
            lost *= random.uniform(0.9, 1.1)
        trip_ns = self.trips_ns.get(way, self.trip_ns)
        if second < self.idle_s:
            rate = packets = busy_ns = 0
        return link(
            *way,
            second * S,
            kind="udp" if self.udp else "tcp",
            packets=packets,
            resent=round(packets * lost),
            negotiated_bps=self.negotiated_bps.get(way[0], 10**9),
            within_host=self.within_host,
            confirmed_bytes=round(rate * busy_ns / 8e9),
            busy_ns=busy_ns,
            # Data wait behind the data before them, 64 KiB or less.
            round_trip_ns=trip_ns + round(random.randrange(48_000, 56_000) * 8e9 / carried),
            # A queue lengthens most round trips, but not all of them.
            least_round_trip_ns=round(trip_ns * random.choice([1, 1, 1.1, 8])),
        )

    def offset(self, way: Way, second: int) -> ClockOffset:
        """Return a probe's offset: every third probe waits nowhere, and the clocks differ."""
        wait_ns, back_ns = (self.waits_ns.get(each, 0) for each in (way, way[::-1]))
        if second % 3 == 0 or second < self.waits_from_s:
            wait_ns = back_ns = 0
        one_way_ns = self.trips_ns.get(way, self.trip_ns) // 2
        there_ns, home_ns = one_way_ns + wait_ns, one_way_ns + back_ns
        apart_ns = 3 * S * (way[1] - way[0])
        return ClockOffset(
            rank=way[0],
            peer=way[1],
            at_ns=second * S,
            offset_ns=apart_ns + (there_ns - home_ns) // 2,
            error_ns=(there_ns + home_ns) // 2,
        )


def told(
    tmp_path: Path,
    network: Network,
    *,
    names: Iterable[str] = (),
    together: bool = False,
    linked: bool = True,
    seconds: int = SECONDS,
    beside: Sequence[Network] = (),
    events: Mapping[int, Iterable[Record]] | None = None,
) -> list[Cause]:
    """Return the causes that a diagnosis names in the first seconds of a job.

    With `together` ranks with one name share a host, so that no wire joins them; with `linked`
    False no wire joins any ranks. `beside` are the networks of further rails. `events` has further
    records for some seconds.
    """
    random = Random(network.seed)
    job = Job(tmp_path)
    hosts = list(names) or [f"node{rank}" for rank in range(network.hosts)]
    for rank, host in enumerate(hosts):
        job.take(header(rank, host))
        job.take(opened(rank, network.hosts))
    diagnosis = Diagnosis(job)
    causes = []
    for quarter in range(4 * seconds):
        second = quarter // 4
        alive = {
            rank for rank in range(network.hosts) if second < network.killed.get(rank, seconds)
        }
        for rank in alive if second >= network.idle_s else ():
            own_ns = 20 * MS * network.computes.get(rank, 1.0) * random.uniform(0.9, 1.1)
            pause_ns = network.pauses_ns.get(rank, 5 * MS)
            delay_ns = 0.0
            if network.core_waits:
                delay_ns = own_ns * network.core_waits * random.uniform(0, 2)
            taken = step(rank, quarter, quarter * STEP_NS, compute_ns=round(own_ns + delay_ns))
            if network.core_waits:
                taken = replace(taken, run_ns=round(own_ns), run_delay_ns=round(delay_ns))
            passes_ns = taken.forward_ns + taken.backward_ns
            job.take(replace(taken, wall_ns=passes_ns + pause_ns))
        if quarter % 4 == 0:
            for way in network.ways if linked else ():
                near = together and hosts[way[0]] == hosts[way[1]]
                if way[0] in alive and not near:
                    for rail, each in enumerate([network, *beside]):
                        job.take(replace(each.report(way, second, random), rail=rail))
                    job.take(network.offset(way, second))
            for record in (events or {}).get(second, ()):
                job.take(record)
        now_ns = START_NS + quarter * STEP_NS
        job.settle(now_ns)
        causes += diagnosis.update(now_ns)
    return causes


def compared(network: Network) -> list[Cause]:
    """Return the causes that one report of each rail gives before a job, as `doctor` asks."""
    random = Random(network.seed)
    reports = [network.report(way, 20, random) for way in network.ways]
    quickest = [
        replace(
            each,
            confirmed_bytes=10 * each.confirmed_bytes,
            busy_ns=10 * each.busy_ns,
            least_round_trip_ns=network.trips_ns.get(way, network.trip_ns),
        )
        for each, way in zip(reports, network.ways, strict=True)
    ]
    return compare_links([f"node{rank}" for rank in range(network.hosts)], quickest)


NETWORKS = st.builds(
    Network,
    hosts=st.integers(4, 8),
    ring=st.booleans(),
    seed=st.integers(0, 1000),
    rate_bps=st.sampled_from([1e6, 60e6, 9e9]),
    trip_ns=st.sampled_from([30_000, 200_000, 30 * MS]),
    lost=st.sampled_from([0.0, 0.0, 0.002, 0.02]),
    udp=st.booleans(),
)
UDP_NETWORKS = NETWORKS.map(lambda network: replace(network, udp=True))


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
    """The kernel drops packets that a slow process reads late from its UDP rails; rates fall."""
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


@given(network=NETWORKS, data=st.data())
def test_a_rank_that_is_late_for_its_tcp_rails_is_named_before_its_nic(
    tmp_path_factory: pytest.TempPathFactory, network: Network, data: st.DataObject
):
    """A process that is slow by far takes its data late, so that its links carry less."""
    network = replace(network, udp=False)
    host = data.draw(st.integers(0, network.hosts - 1), label="host")
    slower = data.draw(st.one_of(st.floats(1.0, 1.25), st.floats(2.3, 4.0)), label="slower")
    rates = dict.fromkeys(network.of_host(host), 0.3)
    late = replace(network, computes={host: slower}, rates=rates)
    (cause,) = told(tmp_path_factory.mktemp("job"), late)
    assert cause.name == (f"rank {host}" if slower > 2 else f"NIC 0 of host node{host}")


@given(network=UDP_NETWORKS, data=st.data())
def test_a_udp_link_that_begins_to_lose_packets_as_all_others_do_is_no_fault(
    tmp_path_factory: pytest.TempPathFactory, network: Network, data: st.DataObject
):
    """A new pattern of traffic fills queues everywhere; a link that alone loses more is named."""
    way = data.draw(st.sampled_from(network.ways), label="way")
    common, alone = data.draw(st.sampled_from([(0.06, 0.0), (0.0, 0.06)]), label="losses")
    busier = replace(network, lost=common, losses={way: alone})
    told_of = {8: [verdict(*way, 8 * S, "losing")]}
    causes = told(tmp_path_factory.mktemp("job"), busier, events=told_of)
    assert [cause.name for cause in causes] == ([] if common else ["link {}>{}".format(*way)])


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
    """Its cores copy the bytes, and are shared unevenly: the same rates between hosts get names."""
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
