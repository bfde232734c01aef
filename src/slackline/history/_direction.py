"""The directions of all rails, with their rates and disturbances, the most disturbed ones first."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slackline.detect import Condition, Episode
from slackline.history._link import Link
from slackline.history._rank import Rank

__all__ = ["Direction", "directions_of"]

_WORST_FIRST = (Condition.CUT, Condition.SILENT, Condition.SLOW, Condition.LOSING, Condition.LATE)
_BOTH_WAYS = (Condition.CUT, Condition.SILENT)
"""The conditions that concern both directions of a rail."""

_FRESH_NS = 3_000_000_000
"""The age of a report from which no data have moved: there is a report every second with data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Direction:
    """A direction of a rail: its rate, and the disturbance that lasts, if there is one."""

    source: int
    """The rank that sends."""
    target: int
    """The rank that receives."""
    rail: int
    """The index of the rail in its link."""
    kind: str
    """The kind of the rail: "tcp" or "udp"."""
    bits_per_second: float
    """The rate in the latest report's interval; 0 if data have stopped since."""
    round_trip_ns: int
    """The smoothed round trip; 0 while unknown."""
    condition: Condition | None
    """The disturbance: SLOW, LOSING, SILENT or CUT; None without a disturbance."""
    over_ns: int
    """The excess of the latency over its baseline; 0 without an excess."""
    sentence: str
    """The condition with its cause as a sentence; empty before the first measurement."""


def directions_of(
    links: Mapping[tuple[int, int, int], Link],
    ranks: Mapping[int, Rank],
    episodes: Iterable[Episode],
) -> list[Direction]:
    """Return both directions of the rails in `links`, the most disturbed ones first.

    The sender's report describes a direction; without one the receiver's report does. Directions
    without a disturbance are sorted by their rates.
    """
    lasting = {(e.source, e.target, e.rail): e for e in episodes if e.until_ns is None}
    places = {*links, *((peer, rank, rail) for rank, peer, rail in links)}
    found = [_direction(place, links, ranks, lasting) for place in places]
    return sorted(found, key=_order)


def _direction(
    place: tuple[int, int, int],
    links: Mapping[tuple[int, int, int], Link],
    ranks: Mapping[int, Rank],
    lasting: Mapping[tuple[int, int, int], Episode],
) -> Direction:
    source, target, rail = place
    back = target, source, rail
    sends = place in links
    link = links[place if sends else back]
    report = link.latest
    rate = link.sent_bits_per_second if sends else link.received_bits_per_second
    stopped = ranks[link.rank].seen_ns - link.latest_ns > _FRESH_NS
    episode = lasting.get(place)
    if episode is None and (other := lasting.get(back)) and other.condition in _BOTH_WAYS:
        episode = other
    sentence = report.outward if sends else report.inward
    return Direction(
        source=source,
        target=target,
        rail=rail,
        kind=report.kind,
        bits_per_second=0.0 if stopped else rate,
        round_trip_ns=report.round_trip_ns,
        condition=None if episode is None else episode.condition,
        over_ns=0 if episode is None else episode.over_ns,
        sentence=sentence if episode is None else episode.reason,
    )


def _order(direction: Direction) -> tuple[int, int, float, int, int, int]:
    condition = direction.condition
    worst = len(_WORST_FIRST) if condition is None else _WORST_FIRST.index(condition)
    place = direction.source, direction.target, direction.rail
    return worst, -direction.over_ns, -direction.bits_per_second, *place
