"""Links and NICs of one rail that are unlike the others, from the latest reports of all ranks.

What tells is the first of lost packets, round trips and carried rates that differs. A part is named
by all of its links that differ: the NIC of a host, else a link or one direction of it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from slackline.causes._cause import Kind
from slackline.causes._hosts import Direction, Layout, joined, together
from slackline.causes._outliers import above_the_gap, best_quarter
from slackline.history import Job, Link
from slackline.units import show_percent, show_rate, show_time

__all__ = [
    "LEAST_HOSTS",
    "Found",
    "Readings",
    "of_links",
    "readings_of",
    "sites",
    "trips_of",
]

_REPORTS, _LEAST_REPORTS = 10, 4
"""The number of latest reports of each end that are compared, and the least number of them."""

LEAST_HOSTS, _LEAST_PAIRS = 3, 2
"""The number of hosts from which on rates and round trips are compared, and the number of links of
a host from which on its NIC is named."""

_LOST, _LOST_FACTOR, _RESENT, _FEW_RESENT = 0.003, 5.0, 8, 3
"""Packets are lost if this share and this number were sent again, and the factor times the share of
the best quarter of the links. Fewer packets count on a NIC some of whose links lose as many."""

_DROPPED, _INTERVAL_PACKETS, _CALM = 0.0035, 200, 8
"""The same for UDP rails, which find the rate of their path by filling queues that then drop
packets. They do so in some seconds and not in others, while a faulty part loses packets all the
time: what counts is the loss in the calmest of reports of so many packets, without one in eight.
Those links lose too much whose loss stands out (`above_the_gap`)."""

_PACKET_BYTES = 400
"""The least mean packet of a report that tells of losses: acknowledgements are not sent again."""

_DROPPED_BESIDE = 0.03
"""The least loss beside a slow part, for which data come in bursts elsewhere."""

_MOST_DROPPING = 2
"""The number of links of a UDP rail up to which losses are told of links: more of them that no NIC
joins are how the queues of a busy network drop packets, since a fault is in one place."""

_FAR_NS, _FAR_FACTOR = 2_000_000, 4.0
"""A round trip is long if it exceeds the factor times that of the best quarter by this time."""

_CARRIED, _UDP_CARRIED, _BUSY_NS, _BYTES = 0.8, 0.6, 200_000_000, 20_000
"""A rate is low below this share of the peers' rate; UDP rails, whose shares of a path vary more,
have their own. Readings need so much busy time and bytes."""

_SELDOM, _SELDOM_UNLIKE = 0.03, 0.2
"""The least part of the median link's bytes, where all ranks send alike and where they do not: a
few small messages, which are acknowledged late, tell of no rate."""

_LIKE = 0.75
"""Where ranks do not send alike, a link is compared with those that carry at least this part of its
bytes, and share their NICs with as many such links: short bursts look faster."""

_NEARLY, _APART = 0.9, 0.85
"""A NIC is slow if half of its directions are below that share, and all below `_NEARLY`; on UDP
rails also if all are below the share `_APART` of the slowest link between other hosts."""

_WAIT_FACTOR, _WAIT_NS, _WAIT_BYTES = 1.25, 3_000_000, 24_000
"""Data behind a low rate wait in its queue: this factor of the others' wait at least, and longer by
this time, or so many bytes wait. Where they do not, the rate is low because the ends of a link are
late, such as processes on busy cores."""

_QUEUE_NS, _QUEUE_FACTOR = 500_000, 3.0
"""A direction has the queue of a link if its probes wait so long, and so much longer than those of
the other direction."""
_Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Reading:
    """The figures of one direction of a link from its latest reports; None: not known."""

    lost: float | None
    """The share of packets that were sent again; of UDP rails the least share of a report."""
    resent: int
    trip_ns: int | None
    longest_ns: int | None
    rate: float | None
    carried_bytes: int = 0
    negotiated_bps: int = 0
    kind: str = "tcp"
    queued_ns: float | None = None
    """The time by which a round trip of the data themselves is usually longer than the shortest
    one: data wait in the queue of a slow part."""


_NOTHING = _Reading(None, 0, None, None, None)


@dataclass(frozen=True, slots=True)
class Found:
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
    udp: bool = False
    """Whether the rail is a UDP rail, whose ends do the work that the kernel does for TCP."""
    low_rate: bool = False
    """Whether the part carries less than its peers; a late process at one end looks so too."""


Readings = Mapping[int, Mapping[_Pair, _Reading]]
"""The readings of the directions of each rail between hosts."""


def readings_of(
    job: Job,
    plan: Layout,
    silent: Collection[Direction],
    gone: Collection[int],
    *,
    least: int = _LEAST_REPORTS,
) -> Readings:
    found: dict[int, dict[_Pair, _Reading]] = {}
    for (rank, peer, rail), link in job.links.items():
        if not {rank, peer} & set(gone) and _between_hosts(rank, peer, plan):
            broken = (rank, peer, rail) in silent or (peer, rank, rail) in silent
            found.setdefault(rail, {})[rank, peer] = _NOTHING if broken else _read(link, least)
    return found


def trips_of(job: Job, plan: Layout) -> Readings:
    """Return the round trips alone of the directions of each rail between hosts."""
    found: dict[int, dict[_Pair, _Reading]] = {}
    for (rank, peer, rail), link in job.links.items():
        if link.least_round_trip_ns and _between_hosts(rank, peer, plan):
            found.setdefault(rail, {})[rank, peer] = replace(
                _NOTHING, trip_ns=link.least_round_trip_ns
            )
    return found


def of_links(job: Job, plan: Layout, readings: Readings, *, alike: bool = True) -> list[Found]:
    """Return the links and NICs that differ from the others of their rail.

    `alike` says that all ranks have the same part in a step, and so send alike.
    """
    several = len(readings) > 1
    rails = [_Rail(job, plan, rail, readings, several=several) for rail in sorted(readings)]
    return [found for rail in rails for found in rail.differences(alike=alike)]


def _between_hosts(rank: int, peer: int, plan: Layout) -> bool:
    host_of = plan.host_of
    return rank in host_of and peer in host_of and host_of[rank] != host_of[peer]


def _read(link: Link, least: int) -> _Reading:
    latest = link.latest_reports(_REPORTS)
    if len(latest) < least:
        return _NOTHING
    packets = resent = busy_ns = confirmed = longest_ns = 0
    loaded = []
    for each in latest:
        packets += each.packets
        resent += each.resent
        busy_ns += each.busy_ns
        confirmed += each.confirmed_bytes
        if each.least_round_trip_ns > longest_ns:
            longest_ns = each.least_round_trip_ns
        if each.round_trip_ns and each.sent_bytes:
            loaded.append(each.round_trip_ns)
    # Within a host its cores copy the bytes, and their load decides which direction is faster.
    carried = not latest[0].within_host and busy_ns >= _BUSY_NS and confirmed >= _BYTES
    lost = resent / packets if packets else None
    if latest[0].kind == "udp":
        full = [r for r in latest if r.sent_bytes >= r.packets * _PACKET_BYTES]
        shares = [r.resent / r.packets for r in full if r.packets >= _INTERVAL_PACKETS]
        lost = sorted(shares)[len(shares) // _CALM] if len(shares) >= least else None
    return _Reading(
        lost=lost,
        resent=resent,
        trip_ns=link.least_round_trip_ns or None,
        longest_ns=longest_ns or None,
        rate=confirmed * 8e9 / busy_ns if carried else None,
        carried_bytes=confirmed,
        negotiated_bps=latest[0].negotiated_bps,
        kind=latest[0].kind,
        queued_ns=max(0, median(loaded) - link.least_round_trip_ns) if loaded else None,
    )


def sites(job: Job, plan: Layout, readings: Readings) -> str:
    """Return the distance between sites of several hosts each, in words; empty without sites."""
    told = (_Rail(job, plan, rail, readings, several=False).sites() for rail in readings)
    return next(filter(None, told), "")


class _Rail:
    """The links of one rail between hosts, with their readings by direction."""

    def __init__(
        self,
        job: Job,
        plan: Layout,
        rail: int,
        readings: Readings,
        *,
        several: bool,
    ) -> None:
        self._job, self._plan, self._rail, self._several = job, plan, rail, several
        self._readings = readings[rail]
        self._beside = [ways for other, ways in readings.items() if other != rail]
        """The readings of the other rails."""
        self._left = set(self._readings)
        self._udp = any(each.kind == "udp" for each in self._readings.values())

    def differences(self, *, alike: bool) -> list[Found]:
        """Return what differs, each direction once, by the first quantity that tells.

        A UDP rail loses more packets where the path is slow, so its losses tell last; it carries
        and loses what the traffic makes it, so that only like traffic tells anything.
        """
        if self._udp and not alike:
            return self._far()
        if self._udp:
            return [*self._far(), *self._slow(alike=True), *self._losing(dropping=True)]
        found = [*self._losing(dropping=False), *self._far()]
        return [*found, *(replace(each, low_rate=True) for each in self._slow(alike=alike))]

    def _losing(self, *, dropping: bool) -> list[Found]:
        lost = {
            way: each.lost
            for way, each in self._readings.items()
            if each.lost is not None and way in self._left
        }
        if not lost:
            return []
        if dropping:
            explained = len(self._left) < len(self._readings)
            limit = above_the_gap(lost.values(), _DROPPED_BESIDE if explained else _DROPPED)
        else:
            limit = max(_LOST, _LOST_FACTOR * best_quarter(lost.values()))
        resent = {way: each.resent for way, each in self._readings.items()}
        losing = {
            way for way, share in lost.items() if share >= limit and resent[way] >= _FEW_RESENT
        }
        sure = {way for way in losing if resent[way] >= _RESENT}

        def how(ways: Collection[_Pair]) -> str:
            share = show_percent(median(lost[way] for way in ways))
            return f"it loses {share} of its packets{' at any time' if dropping else ''}"

        rest = [share for way, share in lost.items() if way not in losing]
        most = show_percent(max(rest, default=0))
        peers = f"the other links lose {most} at most{' in calm times' if dropping else ''}"
        found = self._named(losing, lost, how, lambda _: peers, sure=sure)
        links = [each for each in found if each.kind is Kind.LINK]
        if dropping and len(links) > _MOST_DROPPING:
            return [each for each in found if each.kind is not Kind.LINK]
        return found

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
            together([self._plan.names[host].removeprefix("host ") for host in hosts])
            for hosts in sites
        ]
        between = [trips[ends] for ends in far if len({places[h] for h in self._hosts(ends)}) == 2]
        return f"hosts {' and hosts '.join(names)} are {show_time(median(between) / 2)} apart"

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
        if len(hosts) < LEAST_HOSTS or len(trips) < LEAST_HOSTS:
            return trips, set(), {}
        base = best_quarter(trips.values())
        far = {ends for ends, trip_ns in trips.items() if trip_ns > _FAR_NS + _FAR_FACTOR * base}
        return trips, far, joined(hosts, [self._hosts(ends) for ends in trips.keys() - far])

    def _far(self) -> list[Found]:
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
            span = (
                f"{show_time(least)} to {show_time(longest)}"
                if longest > 2 * least
                else show_time(least)
            )
            return f"a round trip takes {span}, on the other links {show_time(median(near))}"

        found = self._named(ways, self._readings, lambda _: "its delay is longer", peers, both=True)
        excess_ns = max((trips[_ends(*way)] for way in ways), default=0)
        return [replace(each, excess_ns=excess_ns) for each in found]

    def _slow(self, *, alike: bool) -> list[Found]:
        known = {way: each for way, each in self._readings.items() if each.rate is not None}
        seldom, nearly = (_SELDOM, _NEARLY) if alike else (_SELDOM_UNLIKE, 0.0)
        usual_bytes = median(each.carried_bytes for each in known.values()) if known else 0
        rates = {
            way: each.rate or 0.0
            for way, each in known.items()
            if way in self._left and each.carried_bytes >= seldom * usual_bytes
        }
        hosts = {host for way in rates for host in self._hosts(way)}
        if len(rates) < _LEAST_PAIRS:
            return []
        if len(hosts) < LEAST_HOSTS and self._beside:
            return self._slow_beside(rates)
        explained = len(self._left) < len(self._readings)
        carried = _UDP_CARRIED if self._udp else _CARRIED
        limit = carried if alike and not explained else carried**2
        found = []

        def how(ways: Collection[_Pair]) -> str:
            return f"it carries {show_rate(median(rates[way] for way in ways))} while data waits"

        fastest = max(rates.values())
        for host, several in self._by_host(rates):
            for each in several:
                ways = [way for way in each if way in rates]
                most = max((rates[way] for way in ways), default=fastest)
                if most >= fastest or len({_ends(*way) for way in ways}) < _LEAST_PAIRS:
                    continue
                others = [way for way in rates if host not in self._hosts(way)]
                if not alike:
                    others = self._as_busy(ways, others)
                rest = [rates[way] for way in others]
                if len(rest) < _LEAST_PAIRS:
                    continue
                parts = [rates[way] / self._usual(way, others, rates) for way in ways]
                below = median(parts) < limit and max(parts) < max(limit, nearly)
                apart = self._udp and not explained and most < _APART * min(rest)
                if (below or apart) and self._queued(ways, others):
                    peers = f"links between other hosts carry {show_rate(median(rest))}"
                    found.append(self._nic(host, ways, how(ways), peers))
                    self._left -= set(ways)
                    limit = carried**2
                    rates = {way: rate for way, rate in rates.items() if way not in ways}
                    break
        if len(rates) < _LEAST_PAIRS:
            return found
        for ends in sorted({_ends(*way) for way, rate in rates.items() if rate < limit * fastest}):
            mine = [way for way in (ends, ends[::-1]) if way in rates]
            others = [way for way in rates if way not in mine]
            if not alike:
                others = self._as_busy(mine, others)
            if len(hosts) < LEAST_HOSTS:
                others = [max(rates, key=lambda way: rates[way])]
            if len(others) < min(_LEAST_PAIRS, len(rates) - len(mine)) or not others:
                continue
            usual = median(rates[way] for way in others)
            least = {way: min(usual, self._usual(way, others, rates)) for way in mine}
            slow = [way for way in mine if rates[way] < limit * least[way]]
            if slow and self._queued(slow, others):
                slow = self._waiting(slow)
                peers = f"the other links carry {show_rate(usual)}"
                found.append(self._link(slow, how(slow), peers))
                self._left -= set(mine)
        return found

    def _as_busy(self, ways: Collection[_Pair], others: Iterable[_Pair]) -> list[_Pair]:
        """Return the directions that carry nearly as much, and share their NICs with as many."""
        least = _LIKE * median(self._readings[way].carried_bytes for way in ways)
        busy = {way for way, each in self._readings.items() if each.carried_bytes >= least}
        many = Counter(self._hosts(way)[0] for way in busy)
        most = max(many[host] for way in ways for host in self._hosts(way))
        return [
            way
            for way in others
            if way in busy and min(many[host] for host in self._hosts(way)) >= most
        ]

    def _usual(self, way: _Pair, others: Sequence[_Pair], rates: Mapping[_Pair, float]) -> float:
        """Return the rate of links between ranks that are as far from each other.

        Neighbours in a ring may carry larger messages than other ranks do.
        """
        ranks = len(self._plan.host_of)
        alike = [each for each in others if (each[1] - each[0] - way[1] + way[0]) % ranks == 0]
        return median(rates[each] for each in (alike if len(alike) >= _LEAST_PAIRS else others))

    def _slow_beside(self, rates: Mapping[_Pair, float]) -> list[Found]:
        """Return what carries less between two hosts than the same links do on another rail.

        The same processes send on all rails, so that late ones lower the rates of all.
        """
        known = {way: other for way in rates if (other := self._fastest_beside(way)) is not None}
        slow = [way for way, other in known.items() if self._slower(self._readings[way], other)]
        if not slow:
            return []
        self._left -= set(slow)
        how = f"it carries {show_rate(median(rates[way] for way in slow))} while data waits"
        others = show_rate(median(known[way].rate or 0.0 for way in slow))
        peers = f"another rail carries {others}"
        nominal = {self._hosts(way)[0]: each.negotiated_bps for way, each in self._readings.items()}
        least = min(nominal, key=lambda host: nominal[host])
        if len(nominal) > 1 and 0 < nominal[least] < max(nominal.values()):
            return [self._nic(least, slow, how, peers)]
        links = sorted({_ends(*way) for way in slow})
        if len(links) > 1 and set(links) == {_ends(*way) for way in known}:
            return [self._whole(slow, how, peers)]
        return [
            self._link([way for way in slow if _ends(*way) == each], how, peers) for each in links
        ]

    def _fastest_beside(self, way: _Pair) -> _Reading | None:
        """Return the reading of a direction on the rail that carries most of the other rails."""
        known = [ways[way] for ways in self._beside if way in ways and ways[way].rate is not None]
        return max(known, key=lambda each: each.rate or 0.0, default=None)

    def _slower(self, mine: _Reading, other: _Reading) -> bool:
        """Return whether a direction carries less than on another rail, although its data wait."""
        if mine.rate is None or other.rate is None:
            return False
        carried = _UDP_CARRIED if self._udp else _CARRIED
        if mine.rate >= carried**2 * other.rate * self._nominal(other):
            return False
        if self._udp or mine.queued_ns is None or other.queued_ns is None:
            return True
        return _wait_longer(mine.queued_ns, other.queued_ns, mine.rate)

    def _nominal(self, other: _Reading) -> float:
        """Return the part of another rail's rate that the NICs of this rail have negotiated.

        The part is 1 if that is not known, or if the two NICs of this rail differ.
        """
        mine = {each.negotiated_bps for each in self._readings.values()}
        (one, *more) = mine
        if more or not one or not other.negotiated_bps:
            return 1.0
        return min(1.0, one / other.negotiated_bps)

    def _queued(self, ways: Collection[_Pair], others: Iterable[_Pair]) -> bool:
        """Return whether the data of some directions wait longer than those of others."""
        if self._udp:
            return True  # The rail keeps its path's queue short, so that data wait at the sender.
        mine, theirs = (
            [each for way in some if (each := self._readings[way].queued_ns) is not None]
            for some in (ways, others)
        )
        if not mine or not theirs:
            return True
        rate = median(self._readings[way].rate or 0.0 for way in ways)
        return _wait_longer(median(mine), median(theirs), rate)

    def _waiting(self, ways: list[_Pair]) -> list[_Pair]:
        """Return the one of a link's two slow directions whose queue the data wait in, or both.

        Acknowledgements of the other direction wait in that queue too: its rate is low as well. A
        UDP rail keeps its queues short, so that probes tell nothing there.
        """
        if len(ways) < 2 or self._udp:
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
    ) -> list[Found]:
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
        for host in sorted(hosts) if len(hosts) >= LEAST_HOSTS else ():
            sent, received = out.get(host, []), into.get(host, [])
            several = [[*sent, *received], sent, received]
            many = [ways for ways in several if len({_ends(*way) for way in ways}) >= _LEAST_PAIRS]
            yield host, many

    def _hosts(self, way: _Pair) -> _Pair:
        return self._plan.host_of[way[0]], self._plan.host_of[way[1]]

    def _nic(self, host: int, ways: Sequence[_Pair], how: str, peers: str) -> Found:
        peers += self._negotiated(host)
        name = f"NIC {self._rail} of {self._plan.names[host]}"
        links = frozenset((*way, self._rail) for way in ways)
        ranks = tuple(self._plan.hosts[host])
        return Found(Kind.NIC, name, ranks, self._rail, links, how, peers, udp=self._udp)

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
        return f"; it has negotiated {show_rate(mine)}, other NICs {show_rate(others)}"

    def _link(self, ways: Sequence[_Pair], how: str, peers: str) -> Found:
        low, high = sorted(ways[0])
        name = f"link {low}-{high}" if len(ways) > 1 else "link {}>{}".format(*ways[0])
        rail = self._rail if self._several else None
        if rail is not None:
            name += f" on rail {rail}"
        links = frozenset((*way, self._rail) for way in ways)
        return Found(Kind.LINK, name, (low, high), rail, links, how, peers, udp=self._udp)

    def _whole(self, ways: Sequence[_Pair], how: str, peers: str) -> Found:
        """Return the rail between two hosts with several ranks each."""
        hosts = sorted({host for way in ways for host in self._hosts(way)})
        name = f"rail {self._rail} between {together([self._plan.names[each] for each in hosts])}"
        ranks = tuple(sorted(rank for each in hosts for rank in self._plan.hosts[each]))
        links = frozenset((*way, self._rail) for way in ways)
        return Found(Kind.LINK, name, ranks, self._rail, links, how, peers, udp=self._udp)


def _wait_longer(mine_ns: float, theirs_ns: float, rate_bps: float) -> bool:
    """Return whether data wait longer in a queue of this rate than those of others do."""
    much = mine_ns - theirs_ns >= _WAIT_NS or mine_ns * rate_bps / 8e9 >= _WAIT_BYTES
    return mine_ns >= _WAIT_FACTOR * theirs_ns and much


def _ends(one: int, other: int) -> _Pair:
    return min(one, other), max(one, other)
