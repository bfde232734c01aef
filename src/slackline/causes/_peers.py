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

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median

from slackline.causes._cause import Cause, Kind
from slackline.causes._hosts import Direction, Layout, layout
from slackline.causes._pace import Pace
from slackline.causes._unlike import (
    LEAST_HOSTS,
    Found,
    Readings,
    of_links,
    readings_of,
    sites,
    trips_of,
)
from slackline.history import Job
from slackline.records import SCHEMA_VERSION, FileHeader, LinkReport
from slackline.units import show_time

__all__ = ["REPORTED_NS", "Peers", "compare_links", "sites_of"]

_OWN, _OWN_NS, _OWN_SHARE = 1.25, 1_000_000, 0.03
_SLOWER = 1.45
"""A rank is slower than its peers if its own time is so many times theirs, and longer by this time
and this share of a step at least."""

_LATE = {Kind.NIC: 1.45, Kind.LINK: 1.8}
"""The factor from which on a rank explains that its NIC or its link carries less. Work for a single
slow link takes more of its ranks' cores."""

_SHORT = 1.1
"""If the factor is less than `_SLOWER`, the rank's shorter steps must be longer than the usual ones
of the others too, by this factor."""

_PAUSE_NS, _PAUSE_SHARE = 5_000_000, 0.1
"""The same for the time between two steps, in which one rank may also print and save."""

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

_LATE_NS = 4_500_000_000
"""The time for which a finding about a UDP rail, which a late process would explain, waits for the
ranks' own times. It begins when there is anything to compare."""

REPORTED_NS = 15_000_000_000
"""The time for which the reports that are compared may still tell of a cause that is over."""

_BURST_NS = 25_000_000
"""The latency that bursts may add on the other links while a part of the network is unlike its
peers: data that waited for the part goes on at once."""

_Part = tuple[Kind, tuple[int, ...], int | None]
"""A part of the job, without the direction of a link, which may become clear later."""


class Peers:
    """The comparison of a job's links, NICs and ranks with each other."""

    def __init__(self, job: Job) -> None:
        """Compare the links that `job` keeps."""
        self._job = job
        self._compared_ns = 0
        self._found: list[Found] = []
        self._ranks: list[Found] = []
        """The findings about ranks alone."""
        self._began_ns = 0
        """The Unix time at which there was first anything to compare; 0 before."""
        self._seen_ns: dict[_Part, int] = {}
        self._shown_ns: dict[_Part, int] = {}
        """The Unix time at which a part was last found unlike its peers."""
        self._told: dict[_Part, Found] = {}
        """The findings that were named, each as it was named first."""
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
            readings = readings_of(self._job, plan, silent, gone)
            if not self._began_ns and _comparable(readings, paces):
                self._began_ns = now_ns
            told = [each for each in self._told.values() if each.kind is Kind.RANK]
            self._ranks = _of_ranks(paces)
            links = of_links(self._job, plan, readings, alike=bool(paces))
            self._found = _of_all(links, self._ranks, paces, told)
        parts = _by_part(self._found)
        # The evidence about a rank counts from its beginning, also while a link explains it.
        shown = {**parts, **_by_part(self._ranks)}
        self._seen_ns = {part: self._seen_ns.get(part, now_ns) for part in shown}
        self._shown_ns |= dict.fromkeys(parts, now_ns)
        known = {rank for cause in others for rank in cause.ranks}
        waiting = now_ns - self._began_ns < _LATE_NS and any(
            pace.own_ns is None and pace.early_ns is None for pace in paces.values()
        )
        causes = []
        self.bursts_ns = 0
        for part, found in parts.items():
            each = self._told.get(part, found)
            seen_ns = self._seen_ns[part]
            if now_ns - seen_ns < _HOLD_NS:
                continue
            if part not in self._told:
                explained = known | self._told_beside(each.kind, now_ns)
                if explained & set(each.ranks) or (each.udp and waiting):
                    continue
            self._told[part] = each
            if each.links:
                self.bursts_ns = max(self.bursts_ns, _BURST_NS, each.excess_ns)
            early = not self._began_ns or seen_ns - self._began_ns <= _START_NS
            causes.append(_cause(each, self._job.begun_ns if early else seen_ns, early=early))
        self.covered = frozenset().union(*(cause.links for cause in causes))
        return causes

    def _told_beside(self, kind: Kind, now_ns: int) -> set[int]:
        """Return the ranks of what was named that may show as a part of this kind too.

        What is wrong with a NIC or a rank shows in single links, and takes time of the ranks. A NIC
        is named after its links, when it has become clear that all are alike.
        """
        found = set[int]()
        for part in self._told:
            other, ranks, _ = part
            lately = now_ns - self._shown_ns[part] < REPORTED_NS
            if lately and other is not kind and (kind, other) != (Kind.NIC, Kind.LINK):
                found.update(ranks)
        return found


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
    found = of_links(job, plan, readings_of(job, plan, (), (), least=1))
    return [_cause(each, 0, early=False) for each in found]


def sites_of(job: Job) -> str:
    """Return the distance between sites of several hosts each, in words; empty without sites."""
    plan = layout(job, 0)
    return sites(job, plan, trips_of(job, plan))


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


def _cause(found: Found, since_ns: int, *, early: bool) -> Cause:
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


def _comparable(readings: Readings, paces: Mapping[int, Pace]) -> bool:
    """Return whether a link has carried enough data to compare it, or a rank taken enough steps."""
    busy = any(each.rate is not None for ways in readings.values() for each in ways.values())
    return busy or any(pace.own_ns is not None for pace in paces.values())


def _by_part(findings: Iterable[Found]) -> dict[_Part, Found]:
    return {(each.kind, each.ranks, each.rail): each for each in findings}


def _of_all(
    links: list[Found], ranks: list[Found], paces: Mapping[int, Pace], told: Iterable[Found]
) -> list[Found]:
    """Return the findings about links and NICs, or else those about ranks.

    Work for a slow link takes the cores of its ranks, so links are asked first. A process that is
    slow by far is late for its rails too: they carry less, and the kernel drops packets of UDP. So
    is one of the findings `told`, as long as it is slow at all.
    """
    if not links:
        return ranks
    known = {each.ranks for each in told}
    kept = {each.ranks for each in ranks if each.ranks in known}
    slow = {kind: kept | _slower_by(paces, factor) for kind, factor in _LATE.items()}
    late = [
        each
        for each in links
        if (each.udp or each.low_rate)
        and any(set(each.ranks) >= set(rank) for rank in slow[each.kind])
    ]
    if len(late) < len(links):
        return [each for each in links if each not in late]
    explained = set().union(*(slow[each.kind] for each in links))
    return [each for each in ranks if each.ranks in explained]


def _slower_by(paces: Mapping[int, Pace], factor: float) -> set[tuple[int, ...]]:
    """Return the ranks that are slower by this factor, also before their steps are known."""
    slow = {each.ranks for each in _of_ranks(paces, factor)}
    early = {rank: pace.early_ns for rank, pace in paces.items() if pace.own_ns is None}
    known = {rank: time_ns for rank, time_ns in early.items() if time_ns is not None}
    if len(known) < LEAST_HOSTS or len(known) < len(paces):
        return slow
    others_ns = median(sorted(known.values())[:-1])
    return slow | {(rank,) for rank, time_ns in known.items() if time_ns >= factor * others_ns}


def _of_ranks(paces: Mapping[int, Pace], factor: float = _OWN) -> list[Found]:
    """Return the ranks whose own time in a step, or between steps, is longer than the others'.

    `factor` is the least ratio of the times.
    """
    own = {rank: pace.own_ns for rank, pace in paces.items()}
    found = []
    for rank, own_ns, others_ns in _longer(own, paces, _OWN_NS, _OWN_SHARE, factor):
        short_ns = paces[rank].short_own_ns or 0.0
        if own_ns < _SLOWER * others_ns and short_ns < _SHORT * others_ns:
            continue
        how = "it is slower than the others"
        peers = f"it computes {show_time(own_ns)} a step, the others {show_time(others_ns)}"
        found.append(Found(Kind.RANK, f"rank {rank}", (rank,), None, frozenset(), how, peers))
    pauses = {rank: pace.pause_ns for rank, pace in paces.items()}
    factor = max(factor, _SLOWER)
    for rank, pause_ns, others_ns in _longer(pauses, paces, _PAUSE_NS, _PAUSE_SHARE, factor):
        name = f"the data loader of rank {rank}"
        how = "it is slower than the others"
        peers = (
            f"it takes {show_time(pause_ns)} between two steps, the others {show_time(others_ns)}"
        )
        found.append(Found(Kind.LOADER, name, (rank,), None, frozenset(), how, peers))
    return found


def _longer(
    times: Mapping[int, float | None],
    paces: Mapping[int, Pace],
    least_ns: float,
    share: float,
    factor: float,
) -> list[tuple[int, float, float]]:
    """Return the ranks with a longer time than the others: the rank, its time, and theirs.

    The result is empty if the time of a rank is not known, and if half of the ranks differ.
    """
    known = {rank: time_ns for rank, time_ns in times.items() if time_ns is not None}
    if len(known) < LEAST_HOSTS or len(known) < len(times):
        return []
    # Without any one of the longer half, the others have the same median.
    others_ns = median(sorted(known.values())[:-1])
    found = []
    for rank, time_ns in known.items():
        more_ns = max(least_ns, share * paces[rank].step_ns)
        if time_ns >= max(factor * others_ns, others_ns + more_ns):
            found.append((rank, time_ns, others_ns))
    return found if 2 * len(found) < len(known) else []
