"""The distinction between a straggler (a late rank) and a slow link, by the slow directions.

A slow link affects only itself. A rank that answers late makes every link into that rank look slow,
and a rank whose NIC sends slowly makes every link out of that rank look slow. A job of two ranks
has only one link, so nothing can be compared. A switch that is slow makes all links slow.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from slackline.units import show_time

__all__ = ["Side", "Straggler", "find_stragglers", "network_reason"]

_LEAST_RANKS = 3


class Side(StrEnum):
    """The part of a rank's traffic that is late: its answers to probes, or all its sends."""

    ANSWERS = "answers"
    SENDS = "sends"


class Straggler(NamedTuple):
    """A straggler: a late rank, which explains why several of its links are slow."""

    rank: int
    side: Side
    reason: str


def find_stragglers(ranks: int, over_ns: Mapping[tuple[int, int], int]) -> list[Straggler]:
    """Return the ranks whose links are all slow in one direction, each with a reason.

    `over_ns` maps each slow direction (source, target) to its excess over the baseline latency.
    """
    if ranks < _LEAST_RANKS or len(over_ns) < ranks - 1:
        return []
    found = []
    for rank in range(ranks):
        for side, at in ((Side.ANSWERS, 1), (Side.SENDS, 0)):
            slow = [over for ends, over in over_ns.items() if ends[at] == rank]
            if len(slow) == ranks - 1:
                found.append(Straggler(rank, side, _sentence(rank, side, sorted(slow))))
    return found


def network_reason(ranks: int, over_ns: Mapping[tuple[int, int], int]) -> str:
    """Return a sentence if all links between all ranks are slow in both directions, else "".

    `over_ns` is as in `find_stragglers`.
    """
    if ranks < _LEAST_RANKS or len(over_ns) < ranks * (ranks - 1):
        return ""
    middle_ns = sorted(over_ns.values())[len(over_ns) // 2]
    return (
        f"the network is slow: {show_time(middle_ns)} over the usual on all links between "
        f"{ranks} ranks; no single rank, NIC or link is slow"
    )


def _sentence(rank: int, side: Side, over_ns: list[int]) -> str:
    """Return the sentence that explains why a rank is reported as late."""
    baseline = f"{show_time(over_ns[len(over_ns) // 2])} over the usual"
    if side is Side.ANSWERS:
        return (
            f"rank {rank} answers late: {baseline} on all {len(over_ns)} links into it; "
            "the rank, its host or its NIC is slow, not the links"
        )
    return (
        f"rank {rank} sends late: {baseline} on all {len(over_ns)} links out of it; "
        "its host or its NIC is slow, not the links"
    )
