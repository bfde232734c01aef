"""The screen of a job that runs, until a key or a signal ends it."""

import signal
import time
from datetime import timedelta

from rich.console import Console, Group
from rich.live import Live

from slackline.causes import Watch
from slackline.views.terminal._keys import opened_keys
from slackline.views.terminal._render import screen_of
from slackline.views.terminal._view import view_of

__all__ = ["show"]


_LOOK_S = 0.15
"""The time between two readings of the files: what is new and urgent is shown before its turn."""


def show(watch: Watch, console: Console, interval: timedelta) -> int:
    """Show the job on the terminal, anew after each `interval`, until a key or a signal ends it.

    New findings and causes, and a window of another size, are shown at once. Return the exit code:
    0 for the key q and for Ctrl-C, else 128 and the signal's number.
    """
    shown_s = -interval.total_seconds()
    shown: object = None
    with (
        opened_keys() as keys,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            watch.update(time.time_ns())
            now_s, present = time.monotonic(), (watch.said, console.size)
            if now_s - shown_s >= interval.total_seconds() or present != shown:
                shown_s, shown = now_s, present
                _draw(watch, console, live)
            rest_s = shown_s + interval.total_seconds() - now_s
            ended = keys.wait(max(0.0, min(_LOOK_S, rest_s)))
            if ended is not None:
                return 0 if ended in (0, signal.SIGINT) else 128 + ended


def _draw(watch: Watch, console: Console, live: Live) -> None:
    directory = watch.job.directory
    removed = "" if directory.is_dir() else "the job's files have been removed: "
    note = f"q leaves; {removed}{directory}"
    width, height = console.size
    view = view_of(watch, time.time_ns())
    live.update(Group(*screen_of(view, width, height, note=note)), refresh=True)
