"""The command `slackline why`: why a job failed or was slow, and the run in ten lines."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slackline.cli.top import Directory, job_directory
from slackline.units import count

if TYPE_CHECKING:
    from slackline.causes import Answer, Recurrence

__all__ = ["why"]


def why(
    directory: Directory = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the sentences and their facts as JSON; times are Unix time in ns."
        ),
    ] = False,
) -> int:
    """Say why a job failed, what made its steps slow, and what to look at next; then sum it up.

    The job may still run. Three sentences tell of its end: who was late or gone, what the others
    waited for, and what to look at. Two sentences follow for each cause of slow steps, and ten
    lines about the whole run.
    """
    from slackline.causes import answer
    from slackline.views import summary_of

    place, _ = job_directory(directory)
    found = answer(place)
    if as_json:
        print(json.dumps(_facts(found), indent=2))
        return 0
    for sentence in found.ending.sentences:
        print(sentence)
    for each in found.slow:
        print(f"Slow steps, {_when(each, found.watch.first_ns)}: {each.cause.sentence}.")
        print(f"Look at {each.cause.look_at}.")
    for problem in found.problems:
        print(f"note: {problem}")
    print()
    for line in summary_of(found.watch):
        print(f"{line.name:<11}{line.text}")
    return 0


def _facts(found: "Answer") -> dict[str, Any]:
    from slackline.views import summary_of

    return {
        **asdict(found.ending),
        "causes": [spell.as_json() for spell in found.spells],
        "run": {line.name: line.text for line in summary_of(found.watch)},
        "problems": list(found.problems),
    }


def _when(each: "Recurrence", first_ns: int) -> str:
    """Return the times of a cause in seconds from the Unix time `first_ns`, the first record's."""
    since_s, named_s = max(0, each.first_ns - first_ns) / 1e9, (each.named_ns - first_ns) / 1e9
    if each.times > 1:
        span = f"{count(each.times, 'time')} from {since_s:.1f} s on, {each.total}"
        span += " in all" if each.until_ns is not None else ""
    elif each.until_ns is None:
        span = f"since {since_s:.1f} s"
    else:
        span = f"from {since_s:.1f} s to {(each.until_ns - first_ns) / 1e9:.1f} s"
    return f"{span} (named at {named_s:.1f} s)"
