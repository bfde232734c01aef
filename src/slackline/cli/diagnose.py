"""`slackline diagnose`: the causes of slow steps in a run, from the telemetry of its ranks."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from slackline.errors import UsageError

__all__ = ["diagnose"]

_AFTER_NS = 5_000_000_000
"""The time after the last record for which causes are still evaluated, for ranks that have died."""


def diagnose(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIRECTORY",
            help="A directory of telemetry: of slackline run --keep, or SLACKLINE_TELEMETRY. "
            "The ranks may still write.",
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object; times are Unix nanoseconds.")
    ] = False,
) -> int:
    """Print the causes of slow steps: a link, NIC, switch, host, rank, data loader or dead rank."""
    from slackline.diagnose import replay
    from slackline.monitor import Job
    from slackline.telemetry import merge

    job = Job(directory)
    problems: list[str] = []
    records = list(merge(job.directory, problems.append))
    if not records:
        raise UsageError(f"there is no telemetry in {str(directory)!r}")
    first_ns = records[0].time_ns
    until_ns = min(records[-1].time_ns + _AFTER_NS, time.time_ns())
    found = list(replay(job, records, until_ns))
    if as_json:
        causes = [
            {
                "named_ns": named_ns,
                "since_ns": cause.since_ns,
                "kind": cause.kind.value,
                "name": cause.name,
                "ranks": cause.ranks,
                "rail": cause.rail,
                "sentence": cause.sentence,
            }
            for named_ns, cause in found
        ]
        print(json.dumps({"causes": causes, "problems": problems}))
        return 0
    for problem in problems:
        print(f"note: {problem}")
    for named_ns, cause in found:
        since_s, named_s = (cause.since_ns - first_ns) / 1e9, (named_ns - first_ns) / 1e9
        print(f"since {since_s:.1f} s (named at {named_s:.1f} s): {cause.sentence}")
    if not found:
        ranks = len(job.ranks)
        print(f"no cause found in the telemetry of {ranks} {'rank' if ranks == 1 else 'ranks'}")
    return 0
