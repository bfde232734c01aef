"""`slackline bisect`: the first place at which two runs with virtual ranks have other bits."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slackline.cli.certify import Run, read
from slackline.units import count

if TYPE_CHECKING:
    from slackline.bits import Parting

__all__ = ["bisect"]


def bisect(
    run: Run,
    other: Annotated[Path, typer.Argument(metavar="RUN_B", help="The other run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Find the step, virtual rank, tensor and rank at which two runs part, and what else differs.

    Hashes of the tensors are needed in that step: the command says how to record them. The exit
    status is 1 if the runs differ.
    """
    from slackline.bits import bisect as search

    found = search(read(run), read(other))
    if as_json:
        facts = {**vars(found), "comparison": vars(found.comparison), "cause": found.cause}
        print(json.dumps(facts))
    else:
        for line in _lines(found):
            print(line)
    return 0 if found.comparison.equal else 1


def _lines(found: "Parting") -> list[str]:
    """Return the result in words."""
    step = found.comparison.first_different
    if step is None:
        return [f"no difference in the {count(found.comparison.steps, 'step')} of both runs"]
    last = found.comparison.last_equal
    before = "" if last is None else f", and equal after step {last}"
    lines = [f"The runs differ after step {step}{before}."]
    mine, theirs = found.ranks
    where = (
        f"rank {mine}" if mine == theirs else f"rank {mine} of one run and {theirs} of the other"
    )
    if not found.what:
        lines.append(
            f"Without hashes of the tensors in step {step} there is no more to see: run both again "
            f"with SLACKLINE_TENSOR_HASHES={step}."
        )
    else:
        of = f" of virtual rank {found.virtual_rank}" if found.virtual_rank >= 0 else ""
        name = {"gradients": "gradient", "sums": "sum of gradients", "state": "tensor"}[found.what]
        lines += [
            f"First other bits: the {name} {found.tensor}{of}, on {where} "
            f"({found.differing} of {found.tensors} differ).",
            f"They arise in {found.cause}.",
        ]
    if not found.conditions:
        lines.append("No recorded condition differs.")
    lines += [f"{name}: {one!r} and {two!r}" for name, one, two in found.conditions]
    return lines
