"""The panels of a page, computed again when the ranks have written more records."""

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import msgspec

from slackline.causes import Watch
from slackline.history import Job
from slackline.views.page._faults import faults
from slackline.views.page._links import link_history, links
from slackline.views.page._messages import messages, problems
from slackline.views.page._pipeline import pipeline
from slackline.views.page._promises import promises
from slackline.views.page._steps import StepTimes, overview, states_of
from slackline.views.page._timeline import timeline

__all__ = ["Feed", "Panels", "pause_after"]

_Result = TypeVar("_Result")

_INTERVAL = timedelta(milliseconds=150)
"""The least time between two readings of the files."""
_PANELS_S = 1.0
"""The time after which panels are computed again; a new finding or cause is shown at once."""
_LEAST_IDLE = 4
"""The least ratio of the time between two readings to the time that the first one has taken."""


@dataclass(frozen=True, slots=True)
class _Panel:
    """The content of a panel: a JSON object as text, and the number of its latest change."""

    version: int
    text: str


class Panels:
    """The panels of a job's page, each a JSON object as text."""

    NAMES = (
        "overview",
        "messages",
        "faults",
        "steps",
        "links",
        "timeline",
        "pipeline",
        "promises",
        "problems",
    )

    def __init__(self, watch: Watch) -> None:
        """Create the panels of the job that `watch` reads."""
        job = watch.job
        self._functions: dict[str, Callable[[], dict[str, Any]]] = {
            "overview": lambda: overview(watch, time.time_ns()),
            "messages": partial(messages, watch),
            "faults": partial(faults, watch),
            "steps": partial(StepTimes().panel, job),
            "links": partial(links, job),
            "timeline": partial(timeline, job),
            "pipeline": partial(pipeline, job),
            "promises": partial(promises, job),
            "problems": partial(problems, job),
        }

    def text(self, name: str) -> str:
        """Return the present content of one panel."""
        return msgspec.json.encode(self._functions[name]()).decode()

    def texts(self) -> dict[str, str]:
        """Return the present content of all panels, by name."""
        return {name: self.text(name) for name in self.NAMES}


class Feed:
    """The panels of a job that may still run, for any number of readers.

    A thread of the feed reads the files and computes the panels; all methods belong to one event
    loop, which they do not block. Each reader gets the present content of the panels that have
    changed and never a queue of older contents, so a slow reader needs no memory. Panels are
    computed while there are readers.
    """

    def __init__(self, job: Job) -> None:
        self._watch = Watch(job)
        self._sources = Panels(self._watch)
        self._thread = ThreadPoolExecutor(1, "slackline-dashboard-reader")
        self._panels: dict[str, _Panel] = {}
        self._stale = True
        self._computed_s = -_PANELS_S
        self._said: tuple[object, ...] = ()
        self._version = 0
        self._changed = asyncio.Condition()
        self._wanted = asyncio.Event()
        self._closing = self._closed = False
        self.readers = 0
        """The number of connected readers."""

    async def follow(self) -> None:
        """Read the ranks' files, twice a second, until `close`, and once more then."""
        try:
            await self._follow()
        finally:
            self._thread.shutdown()
            async with self._changed:
                self._closed = True
                self._changed.notify_all()

    async def changes(
        self, known: Mapping[str, int], patience: timedelta
    ) -> list[tuple[str, int, str]]:
        """Wait until a panel has changed, the feed is closed or `patience` is over.

        `known` has the version of each panel that the reader has. Returns the name, the version and
        the JSON text of each panel that has another version.
        """
        with suppress(TimeoutError):  # nothing has changed
            async with asyncio.timeout(patience.total_seconds()), self._changed:
                await self._changed.wait_for(lambda: self._closed or bool(self._news(known)))
        return self._news(known)

    async def panel(self, name: str) -> str:
        """Return the present content of one panel as JSON text."""
        return await self._in_thread(self._sources.text, name)

    async def link(self, source: int, target: int) -> str:
        """Return the history of one direction of a link as JSON text."""
        history = await self._in_thread(link_history, self._watch.job, source, target)
        return msgspec.json.encode(history).decode()

    def enter(self) -> None:
        """Count a reader; its panels are computed at once."""
        self.readers += 1
        self._wanted.set()

    def leave(self) -> None:
        """Discount a reader."""
        self.readers -= 1

    @property
    def closed(self) -> bool:
        """Whether the feed has ended: its panels do not change any more."""
        return self._closed

    async def close(self) -> None:
        """Ask `follow` to end, which ends the waits of all readers."""
        self._closing = True
        self._wanted.set()

    async def _follow(self) -> None:
        while True:
            closing = self._closing
            began_s = time.monotonic()
            texts = await self._in_thread(self._read, self.readers > 0, closing)
            pause = pause_after(timedelta(seconds=time.monotonic() - began_s))
            async with self._changed:
                for name, text in texts.items():
                    if name not in self._panels or self._panels[name].text != text:
                        self._version += 1
                        self._panels[name] = _Panel(self._version, text)
                self._changed.notify_all()
            if closing:
                return
            with suppress(TimeoutError):  # no reader has come meanwhile
                await asyncio.wait_for(self._wanted.wait(), pause.total_seconds())
            self._wanted.clear()

    def _news(self, known: Mapping[str, int]) -> list[tuple[str, int, str]]:
        return [
            (name, panel.version, panel.text)
            for name, panel in self._panels.items()
            if known.get(name) != panel.version
        ]

    async def _in_thread(self, work: Callable[..., _Result], *given: object) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *given)

    def _read(self, compute: bool, at_once: bool) -> dict[str, str]:
        """Read new records; return the panels that may have changed if `compute` is true.

        With `at_once` they are computed even if they were computed just before.
        """
        job = self._watch.job
        try:
            added = self._watch.update(time.time_ns())
        except OSError as error:
            added = 0
            sentence = f"cannot read {error.filename}: {error.strerror}"
            if sentence not in job.problems:
                job.problems.append(sentence)
                added = 1
        # A finding may become complete, a cause may be named or end, and a process may be killed
        # without a new record.
        said = self._watch.said, states_of(self._watch, time.time_ns())
        self._stale = self._stale or bool(added) or said != self._said
        urgent = at_once or said != self._said or not self._panels
        now_s = time.monotonic()
        if not compute or not self._stale or not (urgent or now_s - self._computed_s >= _PANELS_S):
            return {}
        self._said, self._stale, self._computed_s = said, False, now_s
        return self._sources.texts()


def pause_after(reading: timedelta) -> timedelta:
    """Return the pause after a reading that has taken the given time.

    In a job with many ranks the readings take at most a fifth of a core's time.
    """
    return max(_INTERVAL, _LEAST_IDLE * reading)
