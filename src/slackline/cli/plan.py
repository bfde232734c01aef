"""The command `slackline plan`: plans as text, checked, with their cost in steps, bytes or time.

The bytes and messages of a collective are counted at the busiest rank. The sub-command for
pipelines is in `_plan_pipeline`.
"""

from collections.abc import Sequence
from typing import Annotated

import typer

from slackline.cli._plan_pipeline import pipeline
from slackline.errors import UsageError
from slackline.plan.collective import (
    Collective,
    CollectivePlan,
    CostParameters,
    check,
    estimate,
    generate,
    grid,
    names,
    split,
)
from slackline.units import parse_bytes, show_bytes

__all__ = ["app", "run"]

app = typer.Typer(
    help="Print and check the plans of collectives and pipelines.",
    no_args_is_help=True,
    add_completion=False,
)

_COUNT_ONLY = CostParameters(latency_ns=0, bytes_per_second=1, reduce_bytes_per_second=1)
"""Cost parameters for figures that depend on no machine: steps, messages, bytes."""


app.command()(pipeline)


@app.callback()
def _group() -> None: ...


@app.command()
def collective(
    ranks: Annotated[int, typer.Option("--ranks", "-n", help="Plan for this many ranks.")],
    plan: Annotated[
        str | None, typer.Option(help="Print the plan of this name. Default: compare all plans.")
    ] = None,
    collective: Annotated[
        str, typer.Option(help="Plan this collective: all_reduce, broadcast, ...")
    ] = "all_reduce",
    size: Annotated[
        str | None,
        typer.Option(help="Count bytes for a buffer of this size: 1MiB. Default: count no bytes."),
    ] = None,
    root: Annotated[
        int | None,
        typer.Option(help="Use this rank as the root of a collective that has one. Default: 0."),
    ] = None,
) -> None:
    """Print a collective's plan as a grid, or compare all plans of the collective."""
    known = _collective(collective)
    if known.rooted and root is None:
        root = 0
    nbytes = None if size is None else parse_bytes(size)
    if plan is not None:
        _print_plan(generate(known, plan, ranks, root), nbytes)
        return
    rows = [("plan", *_head(nbytes))]
    rows += [(name, *_figures(generate(known, name, ranks, root), nbytes)) for name in names(known)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def run(argv: Sequence[str]) -> int:
    """Run `slackline plan` with the arguments `argv` and return the exit code.

    Raises UsageError, which names the wrong value.
    """
    code = app(list(argv), prog_name="slackline plan", standalone_mode=False)
    return code if isinstance(code, int) else 0


def _collective(label: str) -> Collective:
    for each in Collective:
        if each.label == label.lower().replace("-", "_"):
            return each
    known = ", ".join(each.label for each in Collective)
    raise UsageError(f'collective must be one of {known}, not "{label}"')


def _print_plan(plan: CollectivePlan, nbytes: int | None) -> None:
    print(plan)
    print(grid(plan))
    print()
    verdict = check(plan)
    print("valid" if verdict.fault is None else str(verdict.fault))
    for name, figure in zip(_head(nbytes), _figures(plan, nbytes), strict=True):
        print(f"{name}: {figure}")
    if nbytes is not None:
        parts = plan.ranks if plan.collective is Collective.ALL_TO_ALL else plan.chunks
        sizes = [show_bytes(size) for _, size in split(nbytes, parts, 1, plan.weights)]
        print(f"chunks: {', '.join(sizes)}")


def _head(nbytes: int | None) -> tuple[str, ...]:
    head = ("steps", "messages", "rank order")
    return head if nbytes is None else (*head, "port bytes", "reduced bytes")


def _figures(plan: CollectivePlan, nbytes: int | None) -> tuple[str, ...]:
    """Return a plan's cost as text, in the order of `_head`.

    Messages and bytes are counted at the busiest rank.
    """
    cost = estimate(plan, nbytes or 0, _COUNT_ONLY)
    figures = (str(cost.steps), str(cost.messages), "yes" if plan.rank_ordered else "no")
    if nbytes is None:
        return figures
    return (*figures, show_bytes(cost.port_bytes), show_bytes(cost.reduced_bytes))
