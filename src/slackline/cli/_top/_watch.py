"""The screen of a job that runs, until a key or a signal ends it."""

import signal
import time
from datetime import timedelta

from rich.console import Console, Group
from rich.live import Live

from slackline.cli._top._keys import opened_keys
from slackline.cli._top._render import screen_of
from slackline.cli._top._view import view_of
from slackline.diagnose import Watch

__all__ = ["show"]


def show(watch: Watch, console: Console, interval: timedelta) -> int:
    """Show the job on the terminal, anew after each `interval`, until a key or a signal ends it.

    Return the exit code: 0 for the key q and for Ctrl-C, else 128 and the signal's number.
    """
    with (
        opened_keys() as keys,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            watch.update(time.time_ns())
            directory = watch.job.directory
            removed = "" if directory.is_dir() else "the job's files have been removed: "
            note = f"q leaves; {removed}{directory}"
            view = view_of(watch, time.time_ns())
            width, height = console.size
            live.update(Group(*screen_of(view, width, height, note=note)), refresh=True)
            ended = keys.wait(interval.total_seconds())
            if ended is not None:
                return 0 if ended in (0, signal.SIGINT) else 128 + ended
