"""The verdicts (reports of changes) of a job's ranks, merged to one line per problem.

Both ends of a link see a delay, and every peer of a straggler sees that the rank is late. The
deduplicator waits a second for the reports of the other ranks and then reports each problem once
(a rail on which nothing arrives at once):
if one straggler explains several slow links, the report names the rank; if all links are slow, it
names the network; else the link.
"""

from dataclasses import dataclass

from slackline.detect._stragglers import find_stragglers, network_reason
from slackline.detect._verdict import Condition, Verdict

__all__ = ["Deduplicator", "Episode", "Report"]

_HOLD_NS = 1_000_000_000
"""The time that other ranks have to report the same problem."""

_HOLD_BROKEN_NS = 50_000_000
"""The same for a rail on which nothing arrives: no rank elsewhere can explain it, and the rail has
had time to be connected again before its end was reported.
"""


Key = tuple[int, int, int]
_Blamed = tuple[int, str]
"""A late rank with the side of its traffic that is late, or the whole network."""

_NETWORK: _Blamed = (-1, "")


@dataclass(slots=True)
class Episode:
    """A problem of one direction of a rail, from its first report to its end."""

    source: int
    target: int
    rail: int
    condition: Condition
    reason: str
    """The latest sentence about the problem."""
    heard_ns: int
    """The time of the first report, by the clock of the process that runs the Deduplicator."""
    over_ns: int
    since_ns: int
    began_ns: int = 0
    """The time `since_ns` by the clock of `heard_ns`."""
    until_ns: int | None = None
    """The end of the problem, by the clock of the rank that measured `since_ns`; None while the
    problem lasts.
    """
    said: bool = False
    muted: bool = False
    """Whether a line about the other direction of the broken rail stands for this one too."""
    told_by: int = -1
    """The rank that reported the problem first; sentences of other ranks are ignored."""


@dataclass(frozen=True, slots=True)
class Report:
    """A line about a problem of one direction of a rail, of one rank, or of the network."""

    sentence: str
    """The line."""
    link: Key | None = None
    """The source, the target and the rail of the direction; None if the line is not about one."""
    rank: int | None = None
    """The rank; None if the line is not about one rank."""


class Deduplicator:
    """A deduplicator of all ranks' verdicts. `now_ns` is the clock of the process that runs it."""

    def __init__(self, ranks: int) -> None:
        self.episodes: list[Episode] = []
        """All problems so far, in the order of their first reports."""
        self.ranks = ranks
        """The number of ranks in the job."""
        self._open: dict[Key, Episode] = {}
        self._blamed: set[_Blamed] = set()
        """The parts that were reported because they explain several slow links."""
        self._network_reason = ""
        """The reason why the network explains all slow links; empty while it does not."""
        self._network_until_ns: int | None = None
        self._lines: list[Report] = []

    @property
    def open_episodes(self) -> list[Episode]:
        """The problems that have not ended, in the order of their first reports."""
        return list(self._open.values())

    def take(self, now_ns: int, rank: int, verdict: Verdict) -> None:
        """Add a verdict that `rank` reported at `now_ns`.

        A verdict of a rank about itself is ignored: `lines` finds stragglers from all links.
        """
        if verdict.source == verdict.target:
            return
        key = verdict.source, verdict.target, verdict.rail
        episode = self._open.get(key)
        if episode is not None and episode.told_by != rank:
            return  # The other end of the link reported the problem first.
        if verdict.condition is Condition.BACK:
            if episode is not None:
                del self._open[key]
                episode.until_ns = verdict.time_ns
                if episode.said:
                    self._lines.append(Report(verdict.reason, link=key))
            return
        if episode is None:
            episode = Episode(
                source=verdict.source,
                target=verdict.target,
                rail=verdict.rail,
                condition=verdict.condition,
                reason=verdict.reason,
                heard_ns=now_ns,
                over_ns=verdict.over_ns,
                since_ns=verdict.since_ns,
                began_ns=now_ns - verdict.time_ns + verdict.since_ns,
                told_by=rank,
            )
            self._open[key] = episode
            self.episodes.append(episode)
            return
        known = episode.condition.broken and verdict.condition.broken
        episode.condition, episode.reason = verdict.condition, verdict.reason
        episode.over_ns = verdict.over_ns
        if not known:
            episode.muted = False
        if episode.said and not known:
            self._lines.append(Report(verdict.reason, link=key))

    def due(self) -> list[int]:
        """Return the times, in rising order, from which `lines` reports the problems held back."""
        waiting = [each for each in self._open.values() if not (each.said or each.muted)]
        held = {each.heard_ns + _hold_ns(each) for each in waiting}
        return sorted(held)

    def lines(self, now_ns: int) -> list[Report]:
        """Return the report lines about problems that became due by `now_ns`, each line once."""
        reasons = self._reasons(now_ns)
        slow = [each for each in self._open.values() if each.over_ns]
        for blamed in [each for each in reasons if each not in self._blamed]:
            heard_ns = max((e.heard_ns for e in slow if blamed in _places(e)), default=now_ns)
            if now_ns - heard_ns >= _HOLD_NS:
                self._blamed.add(blamed)
                self._lines.append(_report_of(blamed, reasons[blamed]))
        for rank, side in sorted(self._blamed - reasons.keys()):
            recovered = f"rank {rank} {side} in time" if side else "the network is as usual"
            self._lines.append(_report_of((rank, side), f"{recovered} again"))
        self._blamed &= reasons.keys()
        for key, episode in self._open.items():
            if episode.said or episode.muted or now_ns - episode.heard_ns < _hold_ns(episode):
                continue
            if self._told_of_other_direction(episode):
                episode.muted = True
                continue
            if not reasons.keys() & _places(episode):
                episode.said = True
                self._lines.append(Report(episode.reason, link=key))
        lines, self._lines = self._lines, []
        return lines

    def _told_of_other_direction(self, episode: Episode) -> bool:
        """Return whether a line about the other direction of a broken rail has been reported."""
        other = self._open.get((episode.target, episode.source, episode.rail))
        broken = episode.condition.broken and other is not None and other.condition.broken
        return broken and other is not None and other.said

    def _reasons(self, now_ns: int) -> dict[_Blamed, str]:
        """Return the parts that explain several slow links at present, each with the reason.

        The links of a network that recovers are back one after the other: for a while the network
        still explains those that are slow.
        """
        over = {(e.source, e.target): e.over_ns for e in self._open.values() if e.over_ns}
        if reason := network_reason(self.ranks, over):
            self._network_reason, self._network_until_ns = reason, None
        elif self._network_reason and self._network_until_ns is None:
            self._network_until_ns = now_ns + _HOLD_NS
        if self._network_until_ns is not None and now_ns >= self._network_until_ns:
            self._network_reason, self._network_until_ns = "", None
        if self._network_reason:
            return {_NETWORK: self._network_reason}
        stragglers = find_stragglers(self.ranks, over)
        return {(each.rank, each.side.value): each.reason for each in stragglers}

    def finish(self) -> list[Report]:
        """Return the report lines that are still held back, at the end of the job."""
        latest = max((episode.heard_ns for episode in self._open.values()), default=0)
        return self.lines(latest + _HOLD_NS)


def _hold_ns(episode: Episode) -> int:
    """Return the time for which a problem is held back after its first report."""
    return _HOLD_BROKEN_NS if episode.condition.broken else _HOLD_NS


def _places(episode: Episode) -> set[_Blamed]:
    """Return the parts that may explain that a direction of a link is slow."""
    return {(episode.target, "answers"), (episode.source, "sends"), _NETWORK}


def _report_of(blamed: _Blamed, sentence: str) -> Report:
    """Return the line about a late rank, or about the whole network."""
    return Report(sentence, rank=None if blamed == _NETWORK else blamed[0])
