"""Link health monitors: sample the engine's rails and report changed conditions.

A thread takes four samples a second while there is traffic, and one while there is none; with many
links it takes fewer, so that it needs half a percent of a processor at most. Verdicts (reports of a
changed condition) go to the logger "slackline.detect" and, if a directory is configured, to the
rank's telemetry, with one report a second for each rail. Only wires are watched:
rails over TCP or UDP, not shared memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from slackline.detect import (
    Condition,
    HealthOptions,
    Judgement,
    Probe,
    RailSample,
    Tracker,
    Verdict,
)
from slackline.env import Environment
from slackline.nic._link_reports import Counted, LinkReports
from slackline.records import ClockOffset, LinkReport, LinkVerdict

__all__ = ["Monitor", "Rails", "Status", "to_sample"]

_log = logging.getLogger("slackline.detect")

_BUSY_S = 0.25
_IDLE_S = 1.0
_SETTLE_S = 0.05
"""The time that a rail has to be connected again before its loss is looked at."""
_REST = 200
"""The least time between two samples, in units of the processor time that a sample took."""


class Status(Counted, Protocol):
    """The fields of the engine's RailStatus that a monitor reads."""

    @property
    def frames_sent(self) -> int: ...
    @property
    def confirmed_bytes(self) -> int: ...
    @property
    def busy_ns(self) -> int: ...


class Rails(Protocol):
    """The methods of the engine that a monitor calls."""

    def rails(self) -> Sequence[Status]: ...
    def link_alive(self, link: int) -> bool: ...


def to_sample(status: Status, rank: int, peer: int, after_ns: int) -> RailSample:
    """Return a rail's status as a sample, with the probes that were sent after `after_ns`.

    Only UDP rails tell of packets here: TCP repeats some whenever it fills a queue.
    """
    counts = status.kind == "udp"
    return RailSample(
        rank=rank,
        peer=peer,
        rail=status.rail,
        kind=status.kind,
        name=status.name,
        up=status.state == "up",
        frames_sent=status.frames_sent,
        packets_sent=status.packets_sent if counts else 0,
        packets_resent=status.packets_resent if counts else 0,
        queued_bytes=status.queued_bytes,
        unconfirmed_bytes=status.unconfirmed_bytes,
        confirmed_bytes=status.confirmed_bytes,
        received_bytes=status.bytes_received,
        busy_ns=status.busy_ns,
        probes=tuple(Probe(*probe) for probe in status.probes if probe[0] > after_ns),
    )


_Stillness = tuple[tuple[tuple[int, int, str, int], ...], tuple[int, ...]]


def _stillness(wires: Iterable[tuple[int, Status]], ended: Sequence[int]) -> _Stillness | None:
    """Return a value that changes with any rail's activity; None while bytes are in flight."""
    rails = []
    for _, status in wires:
        if status.queued_bytes or status.unconfirmed_bytes:
            return None
        rails.append((status.link, status.rail, status.state, status.frames_sent))
    return tuple(rails), tuple(ended)


class Monitor:
    """The health monitor of one group's wires (rails over TCP or UDP).

    One thread calls `start` and `stop`; other methods may be called from any thread.
    """

    def __init__(
        self,
        engine: Rails,
        links: Sequence[int],
        rank: int,
        *,
        members: Sequence[int] | None = None,
        write: Callable[[LinkVerdict | LinkReport | ClockOffset], None] | None = None,
        options: HealthOptions | None = None,
        grows: bool = False,
        start_ns: int | None = None,
    ) -> None:
        """Create a monitor that does not run yet.

        `links[i]` is the engine's number of the link to rank i, -1 for `rank` itself. `members[i]`
        is the rank in the job of the group's rank i, which verdicts name; if `members` is None, the
        two are equal. `write` receives each verdict as a telemetry record. `grows` says whether
        links may get their first wire later. `start_ns` is the monitor's time 0 on CLOCK_MONOTONIC;
        None takes the present.
        """
        self._engine = engine
        names = range(len(links)) if members is None else members
        self._rank = names[rank]
        self._peers = {link: peer for peer, link in zip(names, links, strict=True) if link >= 0}
        self._start_ns = time.monotonic_ns() if start_ns is None else start_ns
        self._tracker = Tracker(self._start_ns, options)
        self._seen_ns: dict[tuple[int, int], int] = {}
        self._made = set[int]()
        """The links that have or had a rail; only these links can have ended."""
        self._frames = 0
        self._stillness: _Stillness | None = None
        self._lock = threading.Lock()
        self._lost: dict[tuple[int, int], str] = {}
        """The reasons for which rails were lost, by link and rail, until they are up again."""
        self._broken = set[tuple[int, int, int]]()
        """The rails that a warning has named as silent or cut: the two ranks and the rail."""
        self._woken = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._write = write
        self._launched = Environment.read().launcher is not None
        self._grows = grows
        self._reports = None if write is None else LinkReports(self._rank, self._start_ns, write)
        self._asked = list[LinkReport | ClockOffset]()
        self._asked_reports = LinkReports(self._rank, self._start_ns, self._asked.append)

    def start(self) -> None:
        """Start the monitor's thread, unless no link has or can get a rail over TCP or UDP."""
        if not (any(self._wires()) or (self._grows and self._peers)):
            return
        thread = threading.Thread(
            target=self._watch, name=f"slackline-health-{self._rank}", daemon=True
        )
        thread.start()
        self._thread = thread

    def stop(self) -> None:
        """Stop the thread and return once the monitor no longer uses the engine."""
        self._stopped.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join()

    def rail_changed(self, link: int, rail: int, change: str, reason: str) -> None:
        """Look at all wires soon, because the engine has reported a change of one."""
        if change in ("lost", "suspect"):
            self._lost[link, rail] = reason
        elif change == "up":
            self._lost.pop((link, rail), None)
        self._woken.set()

    def judgements(self) -> list[Judgement]:
        """Return the health of both directions of each wire, in the order of peers and rails."""
        with self._lock:
            return self._tracker.judgements(time.monotonic_ns())

    def reports(self) -> list[LinkReport]:
        """Return a report on each rail, shared memory included, in the order of the engine.

        The first call reports the time since the monitor's time 0, each later call the time since
        the previous call.
        """
        rails = list(self._rails())
        now_ns = time.monotonic_ns()
        with self._lock:
            self._asked_reports.take(now_ns, rails, self._sentences_at(now_ns))
            found = [each for each in self._asked if isinstance(each, LinkReport)]
            self._asked.clear()
        return found

    def sentences(self) -> dict[tuple[int, int, int], str]:
        """Return the health of both directions of each rail, by source, target and rail."""
        with self._lock:
            return self._sentences_at(time.monotonic_ns())

    def look(self, now_ns: int) -> bool:
        """Sample every wire, report changed conditions; return whether any frames were sent.

        `now_ns` is CLOCK_MONOTONIC.
        """
        wires = list(self._wires())
        ended = [self._peers[x] for x in sorted(self._made) if not self._engine.link_alive(x)]
        before, self._stillness = self._stillness, _stillness(wires, ended)
        if before is not None and before == self._stillness:
            return False  # Without activity the detectors learn nothing, so idle time is cheap.
        samples = []
        frames = 0
        for peer, status in wires:
            key = status.link, status.rail
            sample = to_sample(status, self._rank, peer, self._seen_ns.get(key, -1))
            if sample.probes:
                self._seen_ns[key] = sample.probes[-1].sent_ns
            samples.append(sample)
            frames += sample.frames_sent
        with self._lock:
            known = {(self._peers[link], rail): why for (link, rail), why in self._reasons()}
            verdicts = self._tracker.take(now_ns, samples, ended, known)
            sentences = self._sentences(now_ns)
        for verdict in verdicts:
            self._tell(verdict)
        if self._reports is not None and sentences is not None:
            self._reports.take(now_ns, wires, sentences)
        moved, self._frames = frames != self._frames, frames
        return moved

    def _reasons(self) -> list[tuple[tuple[int, int], str]]:
        return [each for each in list(self._lost.items()) if each[0][0] in self._peers]

    def _sentences(self, now_ns: int) -> dict[tuple[int, int, int], str] | None:
        """Return `sentences`, or None if no report is due; the lock must be held."""
        if self._reports is None or not self._reports.due(now_ns):
            return None
        return self._sentences_at(now_ns)

    def _sentences_at(self, now_ns: int) -> dict[tuple[int, int, int], str]:
        states, judgements = self._tracker.states(), self._tracker.judgements(now_ns)
        return {
            (state.source, state.target, state.rail): judgement.reason
            for state, judgement in zip(states, judgements, strict=True)
        }

    def _wires(self) -> Iterator[tuple[int, Status]]:
        """Yield (peer, status) of every rail over TCP or UDP that has not ended."""
        for peer, status in self._rails():
            self._made.add(status.link)
            if status.kind != "shm" and status.state != "ended":
                yield peer, status

    def _rails(self) -> Iterator[tuple[int, Status]]:
        """Yield (peer, status) of every rail of the watched links, whatever its kind and state."""
        for status in self._engine.rails():
            if (peer := self._peers.get(status.link)) is not None:
                yield peer, status

    def _watch(self) -> None:
        wait_s = _BUSY_S
        while True:
            if self._woken.wait(wait_s):
                self._woken.clear()
                self._stopped.wait(_SETTLE_S)
            if self._stopped.is_set():
                return
            began_ns = time.thread_time_ns()
            busy = self.look(time.monotonic_ns())
            spent_s = (time.thread_time_ns() - began_ns) / 1e9
            wait_s = _pause_s(busy, spent_s)

    def _tell(self, verdict: Verdict) -> None:
        """Log a verdict (a change of a condition), and write the verdict to the telemetry.

        A rail that is cut after it was silent has one warning: the second line has level INFO.
        """
        rail = (
            min(verdict.source, verdict.target),
            max(verdict.source, verdict.target),
            verdict.rail,
        )
        broken = verdict.condition.broken
        level = logging.WARNING
        if verdict.condition is Condition.BACK or (broken and rail in self._broken):
            level = logging.INFO
        if broken:
            self._broken.add(rail)
        else:
            self._broken.discard(rail)
        # Without handlers, logging prints warnings to stderr, where the launcher shows them too.
        if _log.hasHandlers() or not self._launched:
            _log.log(level, "%s", verdict.reason)
        if self._write is not None:
            self._write(
                LinkVerdict(
                    rank=self._rank,
                    time_ns=time.time_ns(),
                    at_ns=verdict.time_ns - self._start_ns,
                    since_ns=verdict.since_ns - self._start_ns,
                    condition=verdict.condition.value,
                    source=verdict.source,
                    target=verdict.target,
                    rail=verdict.rail,
                    over_ns=verdict.over_ns,
                    reason=verdict.reason,
                )
            )


def _pause_s(busy: bool, spent_s: float) -> float:
    """Return the seconds until the next sample, after one that took `spent_s` of processor time."""
    return min(max(_BUSY_S, _REST * spent_s), _IDLE_S) if busy else _IDLE_S
