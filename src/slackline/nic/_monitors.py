"""The health monitors of an engine, each of which is made when a group has a wire to watch.

Most ranks of one host have no wires (rails over TCP or UDP), and need none of the detectors.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import slackline._native as _native
    from slackline.detect import Judgement
    from slackline.nic._health import Monitor
    from slackline.records import ClockOffset, LinkReport, LinkVerdict

__all__ = ["Monitors", "Watch"]

Write = Callable[["LinkVerdict | LinkReport | ClockOffset"], None]


class Watch:
    """The watch over one group's links, which has a monitor if there are wires.

    Any thread may call.
    """

    def __init__(self, make: Callable[[], Monitor], links: frozenset[int]) -> None:
        """Create a watch over `links` (the engine's numbers) without a monitor, which `make` makes.

        The detectors of a monitor take long to import.
        """
        self.links = links
        self._make = make
        self._lock = threading.Lock()
        self._monitor: Monitor | None = None

    def start(self) -> None:
        """Make the monitor and start the monitor's thread."""
        self._made().start()

    def stop(self) -> None:
        """Stop the monitor's thread; return once the monitor no longer uses the engine."""
        if self._monitor is not None:
            self._monitor.stop()

    def judgements(self) -> list[Judgement]:
        """Return the health of both directions of each wire, in the order of peers and rails."""
        return [] if self._monitor is None else self._monitor.judgements()

    def sentences(self) -> dict[tuple[int, int, int], str]:
        """Return the health of both directions of each wire, by source, target and rail."""
        return {} if self._monitor is None else self._monitor.sentences()

    def reports(self) -> list[LinkReport]:
        """Return a report on each rail, as `Monitor.reports` does."""
        return self._made().reports()

    def rail_changed(self, link: int, rail: int, change: str, reason: str) -> None:
        """Have the monitor look at the links at once, and know why a rail was lost."""
        if self._monitor is not None:
            self._monitor.rail_changed(link, rail, change, reason)

    def _made(self) -> Monitor:
        with self._lock:
            if self._monitor is None:
                self._monitor = self._make()
            return self._monitor


class Monitors:
    """The health monitors of an engine. The first open group that uses a link watches the link."""

    def __init__(self, write: Write | None = None) -> None:
        """Create the monitors; `write` receives verdicts and reports as telemetry records."""
        self._open: list[Watch] = []
        self._write = write

    def watch(
        self,
        engine: _native.Engine,
        links: Sequence[int],
        rank: int,
        members: Sequence[int] | None,
        *,
        grows: bool,
    ) -> Watch:
        """Start and return a watch over those links that no other group watches yet.

        The arguments have the same meaning as in `Monitor`.
        """
        known = {link for watch in self._open for link in watch.links}
        mine = [-1 if link in known else link for link in links]
        watched = frozenset(link for link in mine if link >= 0)
        start_ns = time.monotonic_ns()

        def make() -> Monitor:
            from slackline.nic._health import Monitor  # A group without wires needs no detectors.

            return Monitor(
                engine,
                mine,
                rank,
                members=members,
                write=self._write,
                grows=grows,
                start_ns=start_ns,
            )

        watch = Watch(make, watched)
        wires = (rail.kind != "shm" and rail.link in watched for rail in engine.rails())
        if (grows and watched) or any(wires):
            # Here and not later: no verdict about a failure waits for an import.
            watch.start()
        self._open.append(watch)
        return watch

    def rail_changed(self, link: int, rail: int, change: str, reason: str) -> None:
        """Tell the watch over a link that one of its rails has changed."""
        for watch in list(self._open):
            if link in watch.links:
                watch.rail_changed(link, rail, change, reason)

    def end(self, watch: Watch) -> None:
        """Stop the watch of a group that has been closed."""
        if watch in self._open:
            self._open.remove(watch)
        watch.stop()

    def close(self) -> None:
        """Stop all monitors, before the engine is closed."""
        for watch in list(self._open):
            self.end(watch)
