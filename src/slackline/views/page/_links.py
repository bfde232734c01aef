"""The panel of links, as a matrix with a cell for each direction, and the history of one cell."""

from dataclasses import dataclass
from typing import Any

from slackline.detect import Condition, Episode
from slackline.history import Job, Link
from slackline.records import LinkReport
from slackline.views.page._faults import episode_span

__all__ = ["link_history", "links"]

_MOST_RANKS = 32
"""The most rows and columns of the matrix."""
_IDLE_NS = 3_000_000_000
"""The age of a rail's latest report, relative to the job's latest record, from which it is idle."""
_WORST_FIRST = ("cut", "silent", "slow", "losing")
_WHOLE_RAIL = (Condition.CUT, Condition.SILENT)
"""The conditions that both directions of a rail share."""
_Direction = tuple[int, int]
"""The sending and the receiving rank."""
_MOST_SENTENCES = 20


@dataclass(frozen=True, slots=True)
class _Side:
    """A rail's reports of one direction: those of the sender if there are any."""

    link: Link
    sends: bool

    def rate_bps(self, report: LinkReport) -> float:
        """Return the direction's rate in the interval of a report."""
        nbytes = report.sent_bytes if self.sends else report.received_bytes
        return nbytes * 8e9 / max(report.interval_ns, 1)

    @property
    def sentence(self) -> str:
        """The reporting rank's own sentence about the direction."""
        latest = self.link.latest
        return latest.outward if self.sends else latest.inward


def links(job: Job) -> dict[str, Any]:
    """Return the ranks of the matrix, and a cell for each direction with reports.

    `affected` is the number of rails with the cell's condition. Rates are bits per second, delays
    are round trips in milliseconds, the loss is the share of packets that were sent again, from 0
    to 1, or None for rails that do not count packets.
    """
    shown = _shown_ranks(job)
    latest_ns = max((rank.seen_ns for rank in job.ranks.values()), default=0)
    sides, lasting = _sides(job), _lasting(job)
    cells = [
        _cell(direction, sides.get(direction, []), lasting.get(direction, []), latest_ns)
        for direction in sorted({*sides, *lasting})
        if set(direction) <= set(shown)
    ]
    return {
        "ranks": shown,
        "world": job.world_size,
        "cells": cells,
    }


def link_history(job: Job, source: int, target: int) -> dict[str, Any]:
    """Return the kept reports of a direction: columns of equal length, for each of its rails.

    `time_s` is Unix time. A rail without a report at a time has None there. `sentences` are the
    direction's disturbances, the latest first, with the Unix times of their beginnings and ends.
    """
    sides = _sides(job).get((source, target), [])
    times = sorted({time_ns for side in sides for time_ns, _ in side.link.reports})
    return {
        "source": source,
        "target": target,
        "time_s": [time_ns / 1e9 for time_ns in times],
        "rails": [_columns(side, times) for side in sides],
        "sentences": [
            {"text": each.reason, "since_s": since_s, "until_s": until_s}
            for each in _latest_episodes(job, (source, target))
            for since_s, until_s in [episode_span(job, each)]
        ],
    }


def _columns(side: _Side, times: list[int]) -> dict[str, Any]:
    reports = dict(side.link.reports)
    present = [reports.get(time_ns) for time_ns in times]
    return {
        "rail": side.link.rail,
        "kind": side.link.latest.kind,
        "rate_bps": [None if each is None else side.rate_bps(each) for each in present],
        "round_trip_ms": [
            None if each is None or not each.round_trip_ns else each.round_trip_ns / 1e6
            for each in present
        ],
        "loss": [None if each is None else _loss(each) for each in present],
    }


def _cell(
    direction: _Direction, sides: list[_Side], lasting: list[Episode], latest_ns: int
) -> dict[str, Any]:
    worst = min(lasting, key=_severity, default=None)
    live = [side for side in sides if latest_ns - side.link.latest_ns <= _IDLE_NS]
    trips = [side.link.latest.round_trip_ns for side in sides if side.link.latest.round_trip_ns]
    losses = [loss for side in live if (loss := _loss(side.link.latest)) is not None]
    return {
        "source": direction[0],
        "target": direction[1],
        "rails": len(sides),
        "condition": "well" if worst is None else str(worst.condition),
        "affected": len(
            {each.rail for each in lasting if worst and each.condition is worst.condition}
        ),
        "sentence": sides[0].sentence if worst is None else worst.reason,
        "idle": not live,
        "rate_bps": sum(side.rate_bps(side.link.latest) for side in live),
        "round_trip_ms": min(trips) / 1e6 if trips else None,
        "loss": max(losses, default=None),
    }


def _sides(job: Job) -> dict[_Direction, list[_Side]]:
    """Return the rails of each direction, each as its sender reports it, or else its receiver."""
    found: dict[_Direction, dict[int, _Side]] = {}
    for (rank, peer, rail), link in sorted(job.links.items()):
        found.setdefault((rank, peer), {})[rail] = _Side(link, sends=True)
        found.setdefault((peer, rank), {}).setdefault(rail, _Side(link, sends=False))
    return {each: [rails[rail] for rail in sorted(rails)] for each, rails in found.items()}


def _lasting(job: Job) -> dict[_Direction, list[Episode]]:
    """Return the present disturbances of each direction."""
    found: dict[_Direction, list[Episode]] = {}
    for each in job.episodes:
        if each.until_ns is None:
            for direction in _directions(each):
                found.setdefault(direction, []).append(each)
    return found


def _directions(episode: Episode) -> list[_Direction]:
    """Return the directions that a disturbance affects: both of a rail that is cut or silent."""
    ahead = episode.source, episode.target
    return [ahead, ahead[::-1]] if episode.condition in _WHOLE_RAIL else [ahead]


def _latest_episodes(job: Job, direction: _Direction) -> list[Episode]:
    """Return the latest disturbances of a direction, the latest first."""
    found = [each for each in reversed(job.episodes) if direction in _directions(each)]
    return found[:_MOST_SENTENCES]


def _severity(episode: Episode) -> int:
    """Return the place of a disturbance's condition among all conditions, the worst first."""
    names = [*_WORST_FIRST, str(episode.condition)]
    return names.index(episode.condition)


def _loss(report: LinkReport) -> float | None:
    return report.resent / report.packets if report.packets else None


def _shown_ranks(job: Job) -> list[int]:
    """Return the ranks of the matrix: those of disturbances first, if there are too many."""
    lasting = [each for each in job.episodes if each.until_ns is None]
    past = [each for each in job.episodes if each.until_ns is not None]
    wanted = [rank for each in (*lasting, *past) for rank in (each.source, each.target)]
    wanted += sorted({rank for place in job.links for rank in place[:2]})
    return sorted(list(dict.fromkeys(wanted))[:_MOST_RANKS])
