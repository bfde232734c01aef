"""The command `slackline why`: explain the end of a job from its ranks' reports and telemetry."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

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
    and what to look at next.
    """
    from slackline.postmortem import explain, gather

    evidence = gather(directory)
    explanation = explain(evidence)
    if as_json:
        facts = {**asdict(explanation), "problems": list(evidence.problems)}
        print(json.dumps(facts, indent=2))
        return 0
    for sentence in explanation.sentences:
        print(sentence)
    for problem in evidence.problems:
        print(f"note: {problem}")
    return 0
