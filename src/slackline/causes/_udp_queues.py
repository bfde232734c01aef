"""Whether packets of a UDP rail are lost, or wait, as they do on the other links.

UDP rails find the rate of their path by filling queues, in which data wait and which then drop
packets. A new pattern of traffic, such as that of the first steps, fills the queues of many links
at once. A faulty part loses packets all the time, and alone.
"""

from statistics import median

from slackline.causes._hosts import Direction
from slackline.history import Job, Link

__all__ = ["loses_as_its_peers", "waits_as_its_peers"]

_INTERVAL_PACKETS = 200
"""The least number of packets of a report whose loss counts."""

_LEAST_PEERS = 4
"""The least number of other directions that are compared."""

_FACTOR = 2.0
"""A direction is unlike its peers from this factor on of what three quarters of them have."""

_SLICE_NS = 4_000_000
"""The additional latency of the answers of a process that waits for a core, which the engine of a
UDP rail needs for its answers."""

_REPORTS = 10
"""The number of latest reports that tell how long data wait."""


def loses_as_its_peers(job: Job, direction: Direction, since_ns: int) -> bool:
    """Return whether a direction of a UDP rail loses no more than others since a Unix time.

    The loss is that of the calmest report. False for other rails, and while there is too little to
    compare.
    """
    link = job.links.get(direction)
    if link is None or link.latest.kind != "udp":
        return False
    mine = _least_loss(link, since_ns)
    others = [
        loss
        for place, other in job.links.items()
        if place != direction and (loss := _least_loss(other, since_ns)) is not None
    ]
    return mine is not None and _like(mine, others)


def waits_as_its_peers(job: Job, direction: Direction, over_ns: int) -> bool:
    """Return whether the additional latency of a UDP rail needs no explanation.

    It needs none if data wait as long on the other links, or if it is less than the time for which
    a process may wait for a core. False for other rails; an additional latency above that time
    needs an explanation while there are too few other links to compare.
    """
    link = job.links.get(direction)
    if link is None or link.latest.kind != "udp":
        return False
    others = [
        wait_ns
        for (rank, peer, rail), other in job.links.items()
        if {rank, peer} != set(direction[:2]) and (wait_ns := _wait_ns(other)) is not None
    ]
    return over_ns < _SLICE_NS or _like(over_ns, others)


def _like(mine: float, others: list[float]) -> bool:
    if len(others) < _LEAST_PEERS:
        return False
    return mine < _FACTOR * sorted(others)[len(others) * 3 // 4]


def _least_loss(link: Link, since_ns: int) -> float | None:
    """Return the least share of packets that a report since `since_ns` has as sent again."""
    least = None
    for time_ns, report in reversed(link.reports):
        if time_ns < since_ns:
            break
        if report.packets >= _INTERVAL_PACKETS:
            share = report.resent / report.packets
            least = share if least is None else min(least, share)
    return least


def _wait_ns(link: Link) -> float | None:
    """Return the time by which a round trip of data is usually longer than the shortest one."""
    loaded = [
        each.round_trip_ns
        for each in link.latest_reports(_REPORTS)
        if each.round_trip_ns and each.sent_bytes
    ]
    return median(loaded) - link.least_round_trip_ns if loaded else None
