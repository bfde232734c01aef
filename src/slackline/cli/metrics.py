"""The command `slackline metrics`: a job's metrics for Prometheus, until interrupted."""

import logging
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["metrics"]

_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def metrics(
    directory: Annotated[
        Path, typer.Argument(help="Read the telemetry that ranks write into this directory.")
    ],
    listen: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="Answer Prometheus at this address and port, or [::1]:9464."
        ),
    ] = "127.0.0.1:9464",
    token: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Answer only requests with the token in this file; needed for an address that "
            "other machines can reach. Default: none.",
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print the metrics once, and open no port.")
    ] = False,
) -> int:
    """Serve the metrics of a job for Prometheus, until Ctrl-C."""
    from slackline.cli._metrics._options import checked, require_client
    from slackline.monitor import Job

    require_client()
    from slackline.cli._metrics._collector import metrics_text
    from slackline.cli._metrics._endpoint import Endpoint

    if once:
        sys.stdout.write(metrics_text(Job.recorded(directory)))
        return 0
    host, port, secret = checked(listen, token)
    job = Job.recorded(directory)
    logging.basicConfig(level=logging.WARNING, format="slackline: %(message)s")
    # The endpoint's threads inherit the mask, so that the signals wait for this thread.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        with Endpoint(host, port, secret) as endpoint:
            endpoint.serve(job)
            print(f"metrics of {directory} at {endpoint.url}", flush=True)
            signal.sigwaitinfo(_ENDING)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return 0
