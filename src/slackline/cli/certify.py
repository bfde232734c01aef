"""`slackline certify`: the hash of the training's state after each step of a run."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slackline.units import count

if TYPE_CHECKING:
    from slackline.bits import Evidence

__all__ = ["Run", "certify", "read"]

Run = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="A directory of telemetry (slackline run --keep, SLACKLINE_TELEMETRY)."
    ),
]


def certify(
    run: Run,
    other: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN_B]", help="Compare with this run. Default: none.", show_default=False
        ),
    ] = None,
    every: Annotated[
        int, typer.Option(min=1, metavar="STEPS", help="Print each such step, and the last one.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Print the hash of the state after each step of a run with virtual ranks.

    Equal hashes mean equal bits of all parameters, buffers and optimizer states. With a second run,
    compare the two; the exit status is 1 if they differ.
    """
    from slackline.bits import compare

    found = read(run)
    if other is None:
        _print(found, every, as_json=as_json)
        return 0
    second = read(other)
    result = compare(found, second)
    if as_json:
        print(json.dumps({**vars(result), "equal": result.equal}))
        return 0 if result.equal else 1
    for each in (found, second):
        _warn_inexact(each)
    if result.first_different is None:
        print(f"equal in all {count(result.steps, 'step')} of which both runs have a hash")
        return 0
    before = "" if result.last_equal is None else f"; the last equal one is {result.last_equal}"
    print(f"the hashes differ from step {result.first_different} on{before}")
    print(f"slackline bisect {run} {other} shows where")
    return 1


def read(run: Path) -> "Evidence":
    """Return what a run has recorded about its bits; tell of lines that cannot be read."""
    import sys

    from slackline.bits import Evidence
    from slackline.history import Flaws

    flaws = Flaws()
    found = Evidence(run, flaws)
    if flaws.count:
        print(f"slackline: {flaws}", file=sys.stderr)
    return found


def _print(found: "Evidence", every: int, *, as_json: bool) -> None:
    last = list(found.hashes)[-1]
    shown = {
        step: each for step, each in found.hashes.items() if (step + 1) % every == 0 or step == last
    }
    if as_json:
        facts = {
            "ranks": found.ranks,
            "exact": not found.inexact,
            "hashes": shown,
            "chain": found.chain,
            "conditions": found.conditions,
        }
        print(json.dumps(facts))
        return
    for step, each in shown.items():
        print(f"step {step:<8} {each}")
    known = found.conditions.get(0, {})
    names = ("torch", "instruction set", "threads")
    told = [f"{name} {known[name]}" for name in names if name in known]
    print(f"all {len(found.hashes):<9} {found.chain}")
    print(", ".join([count(found.ranks or 1, "rank"), *told]))
    for step in sorted(found.conflicts):
        print(f"step {step} was computed again with other bits")
    _warn_inexact(found)


def _warn_inexact(found: "Evidence") -> None:
    if found.inexact:
        reason = f": {found.inexact_reason}" if found.inexact_reason else ""
        print(f"{found.directory} is inexact{reason}")
