"""The command `slackline dashboard`: a page about a job, until interrupted."""

import signal
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

__all__ = ["dashboard"]


def dashboard(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIRECTORY",
            help="A directory of telemetry (SLACKLINE_TELEMETRY), or of slackline run --keep; the "
            "job may still run.",
        ),
    ],
    port: Annotated[
        int | None,
        typer.Option(help="Serve the page at this port; 0 for any free port. Default: 8470."),
    ] = None,
    listen: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Serve the page at this IP address. Except on 127.0.0.1, requests need a token, "
            "which the printed address has.",
        ),
    ] = "127.0.0.1",
) -> None:
    """Serve a page about the job whose telemetry is in DIRECTORY, until Ctrl-C."""
    from slackline.cli._job._page import open_page
    from slackline.monitor import Job

    job = Job(directory)
    job.check()
    with open_page(port, listen) as page:

        def leave(number: int, frame: FrameType | None) -> None:
            page.stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, leave)
        page.start(job)
        print(f"the page of {directory}: {page.url} (Ctrl-C ends it)", flush=True)
        page.wait()
