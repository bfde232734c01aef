"""Links, NICs and ranks that are unlike their peers, however long they have been so.

Change detectors compare a link with its own past. A link that was slow before the job began has no
other past, so the links between hosts are also compared with each other:

    lost packets    the share of packets that were sent again
    round trips     the shortest since the beginning, which no queue lengthens
    carried rate    acknowledged bytes divided by the time in which any were on their way
    own time        what a rank computes in a step, outside of its collectives

A slow link slows others and itself in several ways, so the first of these quantities that explains
a link is named alone. A link whose two directions carry less is named by the direction in which its
probes wait; of the other one, acknowledgements wait in the same queue.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from slackline.causes._cause import Cause, Kind
from slackline.causes._hosts import Direction, Layout, layout
from slackline.causes._pace import Pace
from slackline.history import Job, Link
from slackline.records import SCHEMA_VERSION, FileHeader, LinkReport

__all__ = ["REPORTED_NS", "Peers", "compare_links", "sites_of"]

_REPORTS, _LEAST_REPORTS = 10, 4
"""The number of latest reports of each end that are compared, and the least number of them."""

_LEAST_HOSTS, _LEAST_PAIRS = 3, 2
"""The number of hosts from which on rates and round trips are compared, and the number of links of
a host from which on its NIC is named."""

_LOST, _LOST_FACTOR, _RESENT, _FEW_RESENT = 0.003, 5.0, 8, 3
"""Packets are lost if this share and this number were sent again, and the factor times the share of
the best quarter of the links. Fewer packets count on a NIC some of whose links lose as many."""

_DROPPED, _DROPPED_FACTOR = 0.015, 4.0
"""The same for UDP rails, with the median link in place of the best quarter: a UDP rail finds the
rate of its path by filling queues, which then drop packets."""

_FAR_NS, _FAR_FACTOR = 2_000_000, 4.0
"""A round trip is long if it exceeds the factor times that of the best quarter by this time."""

_CARRIED, _BUSY_NS, _BYTES = 0.8, 200_000_000, 20_000
"""A rate is low below this share of the peers' rate. Readings need so much busy time and bytes."""

_QUEUE_NS, _QUEUE_FACTOR = 300_000, 3.0
"""A direction has the queue of a link if its probes wait so long, and so much longer than those of
the other direction."""

_OWN, _OWN_NS, _OWN_SHARE = 1.45, 1_000_000, 0.03
"""A rank is slower than its peers if its own time is so many times theirs, and longer by this time
and this share of a step at least."""

_WIRES = ("tcp", "udp")
"""The kinds of rails that are compared."""

_EVERY_NS, _LINKS = 1_000_000_000, 1000
"""The least time between two comparisons of up to so many directions of links: each has a report a
second. More take as many times longer, so that the comparison costs the same share of a core."""

_HOLD_NS = 2_000_000_000
"""The time for which a difference must last before it is evidence."""

_START_NS = 15_000_000_000
"""The time within which a difference must show to hold since the start. It begins when there is
anything to compare: a job may load data for minutes before its first step."""

REPORTED_NS = 15_000_000_000
"""The time for which the reports that are compared may still tell of a cause that is over."""

_BURST_NS = 25_000_000
"""The latency that bursts may add on the other links while a part of the network is unlike its
peers: data that waited for the part goes on at once."""

_Pair = tuple[int, int]
_Place = tuple[Kind, str]


@dataclass(frozen=True, slots=True)
class _Reading:
    """The figures of one direction of a link from its latest reports; None: not known."""

    lost: float | None
    resent: int
    trip_ns: int | None
    longest_ns: int | None
    rate: float | None
    negotiated_bps: int = 0
    kind: str = "tcp"


_NOTHING = _Reading(None, 0, None, None, None)


@dataclass(frozen=True, slots=True)
class _Found:
    """A difference: the part that is unlike its peers, and how."""

    kind: Kind
    name: str
    ranks: tuple[int, ...]
    rail: int | None
    links: frozenset[Direction]
    how: str
    peers: str
    excess_ns: int = 0
    """The time of a round trip, if it is longer than on the other links."""


class Peers:
    """The comparison of a job's links, NICs and ranks with each other."""

    def __init__(self, job: Job) -> None:
        """Compare the links that `job` keeps."""
        self._job = job
        self._compared_ns = 0
        self._found: list[_Found] = []
        self._began_ns = 0
        """The Unix time at which there was first anything to compare; 0 before."""
        self._seen_ns: dict[_Place, int] = {}
        self._told: set[_Place] = set()
        self.covered: frozenset[Direction] = frozenset()
        """The directions of links that the causes returned last explain."""
        self.bursts_ns = 0
        """The latency that the causes returned last may add on other links; 0 without a cause."""

    def causes(
        self,
        plan: Layout,
        paces: Mapping[int, Pace],
        now_ns: int,
        others: Iterable[Cause],
        silent: Collection[Direction],
        gone: Collection[int],
    ) -> list[Cause]:
        """Return the causes that differ from their peers at the Unix time `now_ns`.

        `others` are causes that the past has shown, lately ended ones included: what they concern
        is not named again. The directions in `silent` and the ranks in `gone` are not compared,
        and of ranks only those in `paces`, all of which have the same part in a step.
        """
        every_ns = _EVERY_NS * max(1, len(self._job.links) // _LINKS)
        if now_ns - self._compared_ns >= every_ns:
            self._compared_ns = now_ns
            readings = _readings(self._job, plan, silent, gone)
            if not self._began_ns and _comparable(readings, paces):
                self._began_ns = now_ns
            # Work for a slow link takes the cores of its ranks, so links are asked first.
            self._found = _of_links(self._job, plan, readings) or _of_ranks(paces)
        places = {(each.kind, each.name): each for each in self._found}
        self._seen_ns = {place: self._seen_ns.get(place, now_ns) for place in places}
        known = {rank for cause in others for rank in cause.ranks}
        causes = []
        self.bursts_ns = 0
        for place, each in places.items():
            seen_ns = self._seen_ns[place]
            if now_ns - seen_ns < _HOLD_NS:
                continue
            if place not in self._told and known & set(each.ranks):
                continue
            self._told.add(place)
            if each.links:
                self.bursts_ns = max(self.bursts_ns, _BURST_NS, each.excess_ns)
            early = not self._began_ns or seen_ns - self._began_ns <= _START_NS
            causes.append(_cause(each, self._job.begun_ns if early else seen_ns, early=early))
        self.covered = frozenset().union(*(cause.links for cause in causes))
        return causes


def compare_links(hosts: Sequence[str], reports: Iterable[LinkReport]) -> list[Cause]:
    """Return the links and NICs that are unlike the others, from one report of each rail.

    `hosts` has the name of each rank's host. The limits and the sentences are those of a job that
    runs; each report is of a time in which its link was busy for a while.
    """
    job = Job(Path())
    for rank, host in enumerate(hosts):
        job.take(_header(rank, host))
    for report in reports:
        if report.kind in _WIRES:
            job.take(report)
    plan = layout(job, 0)
    found = _of_links(job, plan, _readings(job, plan, (), (), least=1))
    return [_cause(each, 0, early=False) for each in found]


def sites_of(job: Job) -> str:
    """Return the distance between sites of several hosts each, in words; empty without sites."""
    plan = layout(job, 0)
    readings = _readings(job, plan, (), (), least=1)
    told = (_Rail(job, plan, rail, readings[rail], several=False).sites() for rail in readings)
    return next(filter(None, told), "")


def _header(rank: int, host: str) -> FileHeader:
    return FileHeader(
        version=SCHEMA_VERSION,
        rank=rank,
        time_ns=0,
        monotonic_ns=0,
        host=host,
        clock=f"clock of rank {rank}",
        process=rank,
    )


def _cause(found: _Found, since_ns: int, *, early: bool) -> Cause:
    since = ", since the start" if early else ""
    return Cause(
        kind=found.kind,
        name=found.name,
        ranks=found.ranks,
        rail=found.rail,
        since_ns=since_ns,
        by_peers=True,
        links=found.links,
        sentence=f"{found.name}: {found.how}{since}; {found.peers}",
    )


_Readings = Mapping[int, Mapping[_Pair, _Reading]]
"""The readings of the directions of each rail between hosts."""


def _readings(
    job: Job,
    plan: Layout,
    silent: Collection[Direction],
    gone: Collection[int],
    *,
    least: int = _LEAST_REPORTS,
) -> _Readings:
    found: dict[int, dict[_Pair, _Reading]] = {}
    for (rank, peer, rail), link in job.links.items():
        if not {rank, peer} & set(gone) and _between_hosts(rank, peer, plan):
            broken = (rank, peer, rail) in silent or (peer, rank, rail) in silent
            found.setdefault(rail, {})[rank, peer] = _NOTHING if broken else _read(link, least)
    return found


def _comparable(readings: _Readings, paces: Mapping[int, Pace]) -> bool:
    """Return whether a link has carried enough data to compare it, or a rank taken enough steps."""
    busy = any(each.rate is not None for ways in readings.values() for each in ways.values())
    return busy or any(pace.own_ns is not None for pace in paces.values())


def _of_links(job: Job, plan: Layout, readings: _Readings) -> list[_Found]:
    """Return the links and NICs that differ from the others of their rail."""
    several = len(readings) > 1
    rails = [_Rail(job, plan, rail, readings[rail], several=several) for rail in sorted(readings)]
    return [found for rail in rails for found in rail.differences()]


def _between_hosts(rank: int, peer: int, plan: Layout) -> bool:
    host_of = plan.host_of
    return rank in host_of and peer in host_of and host_of[rank] != host_of[peer]


def _read(link: Link, least: int) -> _Reading:
    latest = link.latest_reports(_REPORTS)
    if len(latest) < least:
        return _NOTHING
    packets, resent = sum(each.packets for each in latest), sum(each.resent for each in latest)
    trips = [each.least_round_trip_ns for each in latest if each.least_round_trip_ns]
    busy_ns = sum(each.busy_ns for each in latest)
    confirmed = sum(each.confirmed_bytes for each in latest)
    carried = busy_ns >= _BUSY_NS and confirmed >= _BYTES
    return _Reading(
        lost=resent / packets if packets else None,
        resent=resent,
        trip_ns=link.least_round_trip_ns or None,
        longest_ns=max(trips, default=None),
        rate=confirmed * 8e9 / busy_ns if carried else None,
        negotiated_bps=latest[0].negotiated_bps,
        kind=latest[0].kind,
    )


class _Rail:
    """The links of one rail between hosts, with their readings by direction."""

    def __init__(
        self,
        job: Job,
        plan: Layout,
        rail: int,
        readings: Mapping[_Pair, _Reading],
        *,
        several: bool,
    ) -> None:
        self._job, self._plan, self._rail, self._several = job, plan, rail, several
        self._readings = readings
        self._left = set(readings)

    def differences(self) -> list[_Found]:
        """Return what differs, each direction once, by the first quantity that tells.

        A UDP rail loses more packets where the path is slow, so its losses tell last.
        """
        if any(each.kind == "udp" for each in self._readings.values()):
            return [*self._far(), *self._slow(), *self._losing(dropping=True)]
        return [*self._losing(dropping=False), *self._far(), *self._slow()]

    def _losing(self, *, dropping: bool) -> list[_Found]:
        lost = {
            way: each.lost
            for way, each in self._readings.items()
            if each.lost is not None and way in self._left
        }
        if not lost:
            return []
        if dropping:
            limit = max(_DROPPED, _DROPPED_FACTOR * median(lost.values()))
        else:
            limit = max(_LOST, _LOST_FACTOR * _best_quarter(lost.values()))
        resent = {way: each.resent for way, each in self._readings.items()}
        losing = {
            way for way, share in lost.items() if share >= limit and resent[way] >= _FEW_RESENT
        }
        sure = {way for way in losing if resent[way] >= _RESENT}

        def how(ways: Collection[_Pair]) -> str:
            return f"it loses {100 * median(lost[way] for way in ways):.2g} % of its packets"

        rest = [share for way, share in lost.items() if way not in losing]
        peers = f"the other links lose {100 * max(rest, default=0):.2g} % at most"
        return self._named(losing, lost, how, lambda _: peers, sure=sure)

    def sites(self) -> str:
        """Return the sites of several hosts each that are far apart, in words; empty without."""
        trips, far, places = self._distances()
        members: dict[int, list[int]] = {}
        for host, site in sorted(places.items()):
            members.setdefault(site, []).append(host)
        sites = [hosts for hosts in members.values() if len(hosts) > 1]
        if not far or len(sites) < 2:
            return ""
        names = [
            _together([self._plan.names[host].removeprefix("host ") for host in hosts])
            for hosts in sites
        ]
        between = [trips[ends] for ends in far if len({places[h] for h in self._hosts(ends)}) == 2]
        return f"hosts {' and hosts '.join(names)} are {_ms(median(between) / 2)} apart"

    def _distances(self) -> tuple[dict[_Pair, int], set[_Pair], dict[int, int]]:
        """Return the shortest round trip of each link, the far links, and the site of each host.

        There are no far links if there is too little to compare.
        """
        trips: dict[_Pair, int] = {}
        for (rank, peer), each in self._readings.items():
            if each.trip_ns is not None:
                ends = _ends(rank, peer)
                trips[ends] = min(trips.get(ends, each.trip_ns), each.trip_ns)
        hosts = {self._plan.host_of[rank] for ends in trips for rank in ends}
        if len(hosts) < _LEAST_HOSTS or len(trips) < _LEAST_HOSTS:
            return trips, set(), {}
        base = _best_quarter(trips.values())
        far = {ends for ends, trip_ns in trips.items() if trip_ns > _FAR_NS + _FAR_FACTOR * base}
        return trips, far, _sites(hosts, [self._hosts(ends) for ends in trips.keys() - far])

    def _far(self) -> list[_Found]:
        trips, far, places = self._distances()
        size = {site: sum(each == site for each in places.values()) for site in places.values()}
        told = set()
        for ends in far:
            one, other = (places[host] for host in self._hosts(ends))
            # Between sites of several hosts each the distance is the shape of the network.
            if one == other or (min(size[one], size[other]) == 1 and max(size.values()) > 1):
                told.add(ends)
        ways = {way for way in self._readings if _ends(*way) in told}
        self._left -= {way for way in self._readings if _ends(*way) in far}
        near = [trip_ns for ends, trip_ns in trips.items() if ends not in far]

        def peers(some: Collection[_Pair]) -> str:
            least = min(trips[_ends(*way)] for way in some)
            longest = max(self._readings[way].longest_ns or 0 for way in some)
            span = f"{_ms(least)} to {_ms(longest)}" if longest > 2 * least else _ms(least)
            return f"a round trip takes {span}, on the other links {_ms(median(near))}"

        found = self._named(ways, self._readings, lambda _: "its delay is longer", peers, both=True)
        excess_ns = max((trips[_ends(*way)] for way in ways), default=0)
        return [replace(each, excess_ns=excess_ns) for each in found]

    def _slow(self) -> list[_Found]:
        rates = {
            way: each.rate
            for way, each in self._readings.items()
            if each.rate is not None and way in self._left
        }
        hosts = {host for way in rates for host in self._hosts(way)}
        if len(rates) < _LEAST_PAIRS:
            return []
        explained = len(self._left) < len(self._readings)
        limit = _CARRIED**2 if explained else _CARRIED
        found = []

        def how(ways: Collection[_Pair]) -> str:
            return f"it carries {_rate(median(rates[way] for way in ways))} while data waits"

        fastest = max(rates.values())
        for host, several in self._by_host(rates):
            for each in several:
                ways = [way for way in each if way in rates]
                most = max((rates[way] for way in ways), default=fastest)
                if most >= limit * fastest or len({_ends(*way) for way in ways}) < _LEAST_PAIRS:
                    continue
                rest = [rate for way, rate in rates.items() if host not in self._hosts(way)]
                if len(rest) >= _LEAST_PAIRS and most < limit * median(rest):
                    peers = f"links between other hosts carry {_rate(median(rest))}"
                    found.append(self._nic(host, ways, how(ways), peers))
                    self._left -= set(ways)
                    limit = _CARRIED**2
                    rates = {way: rate for way, rate in rates.items() if way not in ways}
                    break
        if len(rates) < _LEAST_PAIRS:
            return found
        for ends in sorted({_ends(*way) for way, rate in rates.items() if rate < limit * fastest}):
            mine = [way for way in (ends, ends[::-1]) if way in rates]
            rest = [rate for way, rate in rates.items() if way not in mine]
            if len(hosts) < _LEAST_HOSTS:
                rest = [max(rates.values())]
            if not rest:
                continue
            slow = [way for way in mine if rates[way] < limit * median(rest)]
            if slow:
                slow = self._waiting(slow)
                peers = f"the other links carry {_rate(median(rest))}"
                found.append(self._link(slow, how(slow), peers))
                self._left -= set(mine)
        return found

    def _waiting(self, ways: list[_Pair]) -> list[_Pair]:
        """Return those of a link's two slow directions in which probes wait, or both."""
        if len(ways) < 2:
            return ways
        waits = {way: self._job.queueing_ns(*way) for way in ways}
        if any(wait is None for wait in waits.values()):
            return ways
        one, other = sorted(ways, key=lambda way: waits[way] or 0)
        least, most = waits[one] or 0, waits[other] or 0
        return [other] if most >= max(_QUEUE_NS, _QUEUE_FACTOR * least) else ways

    def _named(
        self,
        unlike: Collection[_Pair],
        known: Mapping[_Pair, object],
        how: Callable[[Collection[_Pair]], str],
        peers: Callable[[Collection[_Pair]], str],
        *,
        both: bool = False,
        sure: Collection[_Pair] | None = None,
    ) -> list[_Found]:
        """Return a NIC for each host whose links are all unlike the others, and the links left.

        `known` has the directions with a reading; with `both` a link is named without a direction.
        `sure`, if given, has the directions with enough evidence of their own.
        """
        left, found = set(unlike), []
        certain = left if sure is None else set(sure)
        for host, several in self._by_host(known) if left else ():
            for ways in several:
                if set(ways) <= left and len(ways) < len(known) and certain & set(ways):
                    found.append(self._nic(host, ways, how(ways), peers(ways)))
                    left -= set(ways)
                    break
        left &= certain
        for ends in sorted({_ends(*way) for way in left}):
            ways = [way for way in (ends, ends[::-1]) if way in left or both]
            found.append(self._link(ways, how(ways), peers(ways)))
        self._left -= set(unlike)
        return found

    def _by_host(self, known: Iterable[_Pair]) -> Iterator[tuple[int, list[list[_Pair]]]]:
        """Yield each host with its directions: all, those out of it, and those into it.

        Hosts with a single link are left out, and all of them if there are too few to compare.
        """
        out: dict[int, list[_Pair]] = {}
        into: dict[int, list[_Pair]] = {}
        for way in known:
            source, target = self._hosts(way)
            out.setdefault(source, []).append(way)
            into.setdefault(target, []).append(way)
        hosts = out.keys() | into.keys()
        for host in sorted(hosts) if len(hosts) >= _LEAST_HOSTS else ():
            sent, received = out.get(host, []), into.get(host, [])
            several = [[*sent, *received], sent, received]
            many = [ways for ways in several if len({_ends(*way) for way in ways}) >= _LEAST_PAIRS]
            yield host, many

    def _hosts(self, way: _Pair) -> _Pair:
        return self._plan.host_of[way[0]], self._plan.host_of[way[1]]

    def _nic(self, host: int, ways: Sequence[_Pair], how: str, peers: str) -> _Found:
        peers += self._negotiated(host)
        name = f"NIC {self._rail} of {self._plan.names[host]}"
        links = frozenset((*way, self._rail) for way in ways)
        ranks = tuple(self._plan.hosts[host])
        return _Found(Kind.NIC, name, ranks, self._rail, links, how, peers)

    def _negotiated(self, host: int) -> str:
        """Return what a NIC has negotiated in words, if it is less than the others have."""
        rates: dict[int, int] = {}
        for (rank, peer), reading in self._readings.items():
            if reading.negotiated_bps:
                rates[self._hosts((rank, peer))[0]] = reading.negotiated_bps
        mine = rates.pop(host, 0)
        others = median(rates.values()) if rates else 0
        if not mine or mine >= others:
            return ""
        return f"; it has negotiated {_rate(mine)}, other NICs {_rate(others)}"

    def _link(self, ways: Sequence[_Pair], how: str, peers: str) -> _Found:
        low, high = sorted(ways[0])
        name = f"link {low}-{high}" if len(ways) > 1 else "link {}>{}".format(*ways[0])
        rail = self._rail if self._several else None
        if rail is not None:
            name += f" on rail {rail}"
        links = frozenset((*way, self._rail) for way in ways)
        return _Found(Kind.LINK, name, (low, high), rail, links, how, peers)


def _of_ranks(paces: Mapping[int, Pace]) -> list[_Found]:
    """Return the rank whose own time in a step is longer than that of the others."""
    own = {rank: pace.own_ns for rank, pace in paces.items()}
    known = {rank: own_ns for rank, own_ns in own.items() if own_ns is not None}
    if len(known) < _LEAST_HOSTS or len(known) < len(own):
        return []
    found = []
    for rank, own_ns in known.items():
        rest = [other_ns for other, other_ns in known.items() if other != rank]
        more_ns = max(_OWN_NS, _OWN_SHARE * paces[rank].step_ns)
        if own_ns >= max(_OWN * median(rest), median(rest) + more_ns):
            how = "it is slower than the others"
            peers = f"it computes {_ms(own_ns)} a step, the others {_ms(median(rest))}"
            found.append(_Found(Kind.RANK, f"rank {rank}", (rank,), None, frozenset(), how, peers))
    return found if 2 * len(found) < len(known) else []


def _sites(hosts: Iterable[int], near: Iterable[_Pair]) -> dict[int, int]:
    """Return the site of each host: hosts that a chain of near pairs joins share one."""
    site = {host: host for host in hosts}
    for one, other in near:
        kept, gone = site[one], site[other]
        if kept != gone:
            site = {host: kept if each == gone else each for host, each in site.items()}
    return site


def _together(names: Sequence[str]) -> str:
    """Return names in words: "a and b", "a, b and c"."""
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _best_quarter(values: Collection[float]) -> float:
    """Return the value below which a quarter of the values lie."""
    return sorted(values)[(len(values) - 1) // 4]


def _ends(one: int, other: int) -> _Pair:
    return min(one, other), max(one, other)


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.0f} ms" if ns >= 10e6 else f"{ns / 1e6:.2g} ms"


def _rate(bits_per_second: float) -> str:
    if bits_per_second >= 1e9:
        return f"{bits_per_second / 1e9:.3g} Gbit/s"
    return f"{bits_per_second / 1e6:.3g} Mbit/s"
