"""The command `slackline top`: a job on a terminal, on a page, or as metrics, live and afterwards.

The command reads the files that the ranks write, and nothing else: the job does not notice it.
"""

import json
import logging
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from slackline.cli._serving import (
    MetricsFlag,
    MetricsListen,
    MetricsToken,
    PageFlag,
    PageListen,
    require_client,
    served,
    signals_blocked,
)
from slackline.errors import UsageError
from slackline.units import parse_duration_ns

__all__ = ["Directory", "job_directory", "top"]

_PLAIN_WIDTH = 160
"""The width of plain text that goes to a file."""

_SHORTEST_NS = 100_000_000

Directory = Annotated[
    Path | None,
    typer.Argument(
        help="Read the files of ranks in this directory: of slackline run --keep, or "
        "SLACKLINE_TELEMETRY. Default: that of this user's running job of slackline run.",
        show_default=False,
    ),
]


def job_directory(directory: Path | None) -> tuple[Path, bool]:
    """Return the directory to read, and whether it is that of a running job that was not named.

    Raises UsageError if no directory was named and this user does not run exactly one job.
    """
    if directory is not None:
        return directory, False
    from slackline.cli._job._announced import find_job

    return Path(find_job().directory), True


def top(
    directory: Directory = None,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Print the screen once, as plain text; with --metrics, the metrics."
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the state once, as one JSON object.")
    ] = False,
    interval: Annotated[
        str, typer.Option(metavar="TIME", help="Show the state anew after this time.")
    ] = "1s",
    page: PageFlag = False,
    page_listen: PageListen = None,
    metrics: MetricsFlag = False,
    metrics_listen: MetricsListen = None,
    metrics_token: MetricsToken = None,
) -> int:
    """Show the ranks, links, causes of slow steps and decisions of a running job; q leaves.

    With --page or --metrics, serve them until Ctrl-C in place of the screen.
    """
    from slackline.views import search_seldom

    search_seldom()
    interval_ns = parse_duration_ns(interval)
    if interval_ns < _SHORTEST_NS:
        raise UsageError(f"--interval must be at least 100ms, not {interval}")
    if once and as_json:
        raise UsageError("--once and --json exclude each other")
    if page or page_listen or metrics or metrics_listen or metrics_token:
        if as_json or (once and (page or page_listen)):
            given = "--json" if as_json else "--once with --page"
            raise UsageError(f"{given} prints once, and servers run until Ctrl-C: leave out one")
        if once and metrics:
            return _print_metrics(directory)
        return _serve(
            directory,
            page=page,
            page_listen=page_listen,
            metrics=metrics,
            metrics_listen=metrics_listen,
            metrics_token=metrics_token,
        )
    if not (once or as_json or sys.stdout.isatty()):
        raise UsageError("stdout is no terminal: add --once, --json, --page or --metrics")
    return _show(directory, interval_ns, once=once, as_json=as_json)


def _show(directory: Path | None, interval_ns: int, *, once: bool, as_json: bool) -> int:
    from rich.console import Console

    from slackline.causes import Watch
    from slackline.history import Job
    from slackline.views.terminal import screen_of, show, view_of

    place, live = job_directory(directory)
    if live and not (once or as_json):
        # The ranks of a running job may still be starting, without a record.
        return show(Watch(Job(place)), Console(), timedelta(microseconds=interval_ns // 1000))
    watch = Watch.recorded(place, time.time_ns())
    if as_json:
        print(json.dumps(view_of(watch, time.time_ns()).as_json()))
        return 0
    if once:
        width = None if sys.stdout.isatty() else _PLAIN_WIDTH
        console = Console(width=width, highlight=False)
        for line in screen_of(view_of(watch, time.time_ns()), console.width):
            console.print(line, no_wrap=True, crop=False, overflow="ignore")
        return 0
    return show(watch, Console(), timedelta(microseconds=interval_ns // 1000))


def _print_metrics(directory: Path | None) -> int:
    from slackline.causes import Watch

    require_client()
    from slackline.views.metrics import metrics_text

    place, _ = job_directory(directory)
    sys.stdout.write(metrics_text(Watch.recorded(place, time.time_ns())))
    return 0


def _serve(
    directory: Path | None,
    *,
    page: bool,
    page_listen: str | None,
    metrics: bool,
    metrics_listen: str | None,
    metrics_token: Path | None,
) -> int:
    from slackline.history import Job

    place, live = job_directory(directory)
    if not live:
        Job(place).check()
    logging.basicConfig(level=logging.WARNING, format="slackline: %(message)s")
    with (
        signals_blocked(),
        served(
            page=page,
            page_listen=page_listen,
            metrics=metrics,
            metrics_listen=metrics_listen,
            metrics_token=metrics_token,
        ) as servers,
    ):
        for said in servers.start(place):
            print(f"{said} (Ctrl-C ends it)", flush=True)
        servers.wait()
    return 0
