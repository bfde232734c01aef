"""Invented networks, with parts that differ from the usual since the start of a job."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from random import Random

from hypothesis import strategies as st
from invented_records import header, opened, step
from made_records import MS_NS as MS
from made_records import SECOND_NS as S
from made_records import START_NS, link

from slackline.causes import Cause, Diagnosis, compare_links
from slackline.history import Job
from slackline.records import ClockOffset, LinkReport, Record

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
    busy: Mapping[Way, float] = field(default_factory=dict)
    """The factor of the time in which a direction has data on their way."""
    seldom: frozenset[Way] = frozenset()
    """The directions with a few small messages, which are acknowledged late."""
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
        busy_ns = round(random.randrange(300 * MS, 900 * MS) * self.busy.get(way, 1.0))
        packets = 5000
        lost = self.lost + self.losses.get(way, 0.0)
        if self.udp:
            lost *= random.uniform(0.9, 1.1)
        trip_ns = self.trips_ns.get(way, self.trip_ns)
        if way in self.seldom:
            carried = rate = 8e9 * 3000 / busy_ns
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
