"""The command `slackline why`: explain the end of a job, and why its steps were slow."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from slackline.cli._spans import when

__all__ = ["why"]


def why(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIRECTORY",
            help="Read the reports and the telemetry in this directory, for example one of "
            "slackline run --keep.",
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the sentences and their facts as JSON.")
    ] = False,
) -> int:
    """Say in three sentences why a job failed: who was late or gone, what the others waited for,
    and what to look at next. Then name what made steps slow.
    """
    from slackline.diagnose import Kind, Watch, recurrences
    from slackline.monitor import Job
    from slackline.postmortem import explain, gather

    evidence = gather(directory)
    explanation = explain(evidence)
    # Files that cannot be read are among the problems of the evidence.
    watch = Watch(Job(directory))
    watch.update(time.time_ns())
    # The explanation tells of a dead rank already.
    found = [each for each in recurrences(watch.spells) if each.cause.kind is not Kind.DEAD]
    if as_json:
        causes = [each.cause.sentence for each in found]
        facts = {**asdict(explanation), "causes": causes, "problems": list(evidence.problems)}
        print(json.dumps(facts, indent=2))
        return 0
    for sentence in explanation.sentences:
        print(sentence)
    for each in found:
        print(f"Slow steps, {when(each, watch.first_ns)}: {each.cause.sentence}.")
        print(f"Look at {each.cause.look_at}.")
    for problem in evidence.problems:
        print(f"note: {problem}")
    return 0
