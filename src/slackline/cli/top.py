"""The command `slackline top`: the ranks and links of a running job on a terminal.

The command reads the files that the ranks write, and nothing else: the job does not notice it.
"""

import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from slackline.errors import UsageError
from slackline.units import parse_duration_ns

__all__ = ["top"]

_PLAIN_WIDTH = 160
"""The width of plain text that goes to a file."""

_SHORTEST_NS = 100_000_000


def top(
    directory: Annotated[
        Path | None,
        typer.Argument(
            help="Read the telemetry in this directory. Default: that of this user's running job "
            "of slackline run.",
            show_default=False,
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print the screen once, as plain text.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the state once, as one JSON object.")
    ] = False,
    interval: Annotated[
        str, typer.Option(metavar="TIME", help="Show the state anew after this time.")
    ] = "1s",
) -> int:
    """Show the ranks, links, causes of slow steps and decisions of a running job; q leaves."""
    from rich.console import Console

    from slackline.cli._job._announced import find_job
    from slackline.cli._top._render import screen_of
    from slackline.cli._top._view import view_of
    from slackline.cli._top._watch import show
    from slackline.diagnose import Watch
    from slackline.monitor import Job

    interval_ns = parse_duration_ns(interval)
    if interval_ns < _SHORTEST_NS:
        raise UsageError(f"--interval must be at least 100ms, not {interval}")
    if once and as_json:
        raise UsageError("--once and --json exclude each other")
    terminal = sys.stdout.isatty()
    if not (once or as_json or terminal):
        raise UsageError("stdout is no terminal: add --once or --json")
    running = find_job() if directory is None else None
    place = Path(running.directory) if running is not None else directory
    assert place is not None
    if running is not None and not (once or as_json):
        # The ranks of a running job may still be starting, without a record.
        return show(Watch(Job(place)), Console(), timedelta(microseconds=interval_ns // 1000))
    watch = Watch.recorded(place, time.time_ns())
    if as_json:
        print(json.dumps(view_of(watch, time.time_ns()).as_json()))
        return 0
    if once:
        console = Console(width=None if terminal else _PLAIN_WIDTH, highlight=False)
        for line in screen_of(view_of(watch, time.time_ns()), console.width):
            console.print(line, no_wrap=True, crop=False, overflow="ignore")
        return 0
    return show(watch, Console(), timedelta(microseconds=interval_ns // 1000))
