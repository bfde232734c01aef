"""Whether a UDP rail loses more packets than its peers since a time.

UDP rails find the rate of their path by filling queues that then drop packets, and a new pattern of
traffic, such as that of the first steps, makes many links lose more at once. A faulty part loses
packets all the time, and alone.
"""

from slackline.causes._hosts import Direction
from slackline.history import Job, Link

__all__ = ["loses_as_its_peers"]

_INTERVAL_PACKETS = 200
"""The least number of packets of a report whose loss counts."""

_LEAST_PEERS = 4
"""The least number of other directions with a loss."""

_FACTOR = 2.0
"""A direction loses more than its peers if its loss is this factor of theirs at least."""


def loses_as_its_peers(job: Job, direction: Direction, since_ns: int) -> bool:
    """Return whether a direction of a UDP rail loses no more than others since a Unix time.

    The loss is that of the calmest report; three quarters of the other directions lose less than
    what it is compared with. False for other rails, and while there is too little to compare.
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
    if mine is None or len(others) < _LEAST_PEERS:
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
