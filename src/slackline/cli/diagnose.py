"""`slackline diagnose`: the causes of slow steps in a run, from the telemetry of its ranks."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slackline.errors import UsageError

if TYPE_CHECKING:
    from slackline.diagnose import Recurrence

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
    from slackline.diagnose import recurrences, replay
    from slackline.monitor import Job
    from slackline.telemetry import merge

    job = Job(directory)
    problems: list[str] = []
    records = list(merge(job.directory, problems.append))
    if not records:
        raise UsageError(f"there is no telemetry in {str(directory)!r}")
    first_ns = records[0].time_ns
    until_ns = min(records[-1].time_ns + _AFTER_NS, time.time_ns())
    spells = replay(job, records, until_ns)
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
            for spell in spells
        ]
        print(json.dumps({"causes": causes, "problems": problems}))
        return 0
    for problem in problems:
        print(f"note: {problem}")
    found = recurrences(spells)
    for each in found:
        print(f"{_when(each, first_ns)}: {each.cause.sentence}")
    if not found:
        ranks = len(job.ranks)
        print(f"no cause found in the telemetry of {ranks} {'rank' if ranks == 1 else 'ranks'}")
    return 0


def _when(each: "Recurrence", first_ns: int) -> str:
    """Return the times of a cause in words, in seconds from the Unix time `first_ns`."""
    since_s, named_s = (each.first_ns - first_ns) / 1e9, (each.named_ns - first_ns) / 1e9
    if each.times > 1:
        span = f"{each.times} times from {since_s:.1f} s on, {each.total}"
        span += " in all" if each.until_ns is not None else ""
    elif each.until_ns is None:
        span = f"since {since_s:.1f} s"
    else:
        span = f"from {since_s:.1f} s to {(each.until_ns - first_ns) / 1e9:.1f} s"
    return f"{span} (named at {named_s:.1f} s)"
