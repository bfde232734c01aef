"""`slackline diagnose`: the causes of slow steps in a run, from the telemetry of its ranks."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from slackline.cli._spans import when

__all__ = ["diagnose"]


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
    from slackline.diagnose import Watch, recurrences

    watch = Watch.recorded(directory, time.time_ns())
    problems = list(watch.job.problems)
    if as_json:
        causes = [
            {
                "named_ns": spell.named_ns,
                "since_ns": spell.cause.since_ns,
                "until_ns": spell.until_ns,
                "explained_by": spell.explained_by,
                "kind": spell.cause.kind.value,
                "name": spell.cause.name,
                "ranks": spell.cause.ranks,
                "rail": spell.cause.rail,
                "sentence": spell.cause.sentence,
            }
            for spell in watch.spells
        ]
        print(json.dumps({"causes": causes, "problems": problems}))
        return 0
    for problem in problems:
        print(f"note: {problem}")
    found = recurrences(watch.spells)
    for each in found:
        print(f"{when(each, watch.first_ns)}: {each.cause.sentence}")
    if not found:
        ranks = len(watch.job.ranks)
        print(f"no cause found in the telemetry of {ranks} {'rank' if ranks == 1 else 'ranks'}")
    return 0
