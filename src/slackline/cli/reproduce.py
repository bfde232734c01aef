"""`slackline reproduce`: published tables beside the simulator's figures, and a real accuracy."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slackline.errors import LinkError, PeerError, TimeoutError, UsageError
from slackline.units import count, show_number, show_percent

if TYPE_CHECKING:
    from slackline.reproduce import ComparedRow, Comparison

__all__ = ["app"]

app = typer.Typer(
    help="Print published tables beside the simulator's figures, with parameters and errors.",
    invoke_without_command=True,
    add_completion=False,
)

_WIDTH = 200
"""The columns of a terminal that a table may use: long names stay in one line."""


@app.callback()
def reproduce(
    context: typer.Context,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="One table; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    names: Annotated[bool, typer.Option("--list", help="Print the names of all tables.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="DIR", help="Draw each table as DIR/<name>.svg."),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="Read tables and experiments from DIR."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="DIR", help="Copy tables and experiments to DIR, and end."),
    ] = None,
) -> int:
    """Print published tables beside the simulator's figures, with parameters and errors."""
    from slackline.reproduce import Folder, compare, draw

    if context.invoked_subcommand is not None:
        if only or as_json or names or any(each is not None for each in (plot, source, save)):
            raise UsageError(
                f"options of the tables cannot precede {context.invoked_subcommand}: "
                f"slackline reproduce {context.invoked_subcommand} --help lists its own"
            )
        return 0
    folder = Folder() if source is None else Folder(source)
    if save is not None:
        if only or as_json or names or plot is not None:
            raise UsageError(
                "--save only copies all tables: leave out --only, --json, --list and --plot"
            )
        print(f"{folder.save(save)} files in {save}")
        return 0
    tables = folder.tables(tuple(only or ()))
    if names:
        if plot is not None:
            raise UsageError("--list simulates nothing: leave out --plot")
        if as_json:
            listed = [{"name": table.name, "title": table.title} for table in tables]
            print(json.dumps({"tables": listed}))
        else:
            for table in tables:
                print(f"{table.name}: {table.title}")
        return 0
    found = []
    for table in tables:
        try:
            found.append(compare(table, folder))
        except (LinkError, PeerError, TimeoutError) as error:
            print(f"slackline: {table.name}: {error}", file=sys.stderr)
            return 1
        if not as_json:
            _print(found[-1])
        if plot is not None:
            path = draw(found[-1], plot)
            if not as_json:
                print(f"drawn: {path}\n")
    if as_json:
        print(json.dumps({"tables": [_object(each) for each in found]}))
    return 0


@app.command()
def accuracy(
    script: Annotated[
        Path, typer.Argument(metavar="[SCRIPT]", help="Run this script. Default: the digits job.")
    ] = Path("examples/train_digits.py"),
    ranks: Annotated[int, typer.Option("--ranks", "-n", help="Start this many ranks.")] = 4,
    epochs: Annotated[int, typer.Option(help="Train for this many epochs.")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Train a network by PCCO and by DistributedDataParallel, and compare all bits of the results.

    The exit code is 1 if the trained parameters or the accuracies differ.
    """
    from dataclasses import asdict

    from slackline.reproduce import train_both_ways

    found = train_both_ways(script, ranks=ranks, epochs=epochs)
    if as_json:
        print(json.dumps({**asdict(found), "unchanged": found.unchanged}))
    else:
        print(f"{script}: {count(found.ranks, 'rank')}, {count(found.epochs, 'epoch')}")
        for each in found.networks:
            print(
                f"  {each.name}: accuracy {show_percent(each.accuracy)}, parameters "
                f"{each.parameters}"
            )
        print("  all bits are equal" if found.unchanged else "  the trained networks differ")
    return 0 if found.unchanged else 1


def _object(comparison: "Comparison") -> dict[str, Any]:
    table = comparison.table
    return {
        "name": table.name,
        "title": table.title,
        "source": table.source,
        "published_method": table.published_method or None,
        "method": table.method,
        "explanation": table.explanation,
        "experiment": table.experiment,
        "parameters": comparison.parameters,
        "rows": [
            {
                "label": each.row.label,
                "case": each.row.case,
                "unit": each.row.unit,
                "published": each.row.published,
                "ours": each.ours,
                "error": each.error,
                "parameters_given": each.row.given,
                "deviates": each.deviates,
            }
            for each in comparison.rows
        ],
    }


def _print(comparison: "Comparison") -> None:
    from rich.console import Console
    from rich.table import Table

    table = comparison.table
    print(f"{table.name}: {table.title}")
    of_published = f" ({table.published_method})" if table.published_method else ""
    print(f"  published{of_published}: {table.source}")
    print(f"  ours ({table.method}): slackline simulate {table.experiment}")
    for name, values in _flat(comparison.parameters):
        print(f"  {name}: {values}")
    shown = Table(box=None, pad_edge=False, header_style="")
    shown.add_column("")
    for name in ("published", "ours", "error", ""):
        shown.add_column(name, justify="right")
    for each in comparison.rows:
        shown.add_row(*_cells(each))
    Console(highlight=False, soft_wrap=True, width=_WIDTH).print(shown)
    if table.explanation:
        print(f"  {' '.join(table.explanation.split())}")
    print()


def _cells(each: "ComparedRow") -> tuple[str, ...]:
    row, error = each.row, each.error
    return (
        row.label,
        "" if row.published is None else f"{show_number(row.published)} {row.unit}",
        f"{show_number(each.ours)} {row.unit}",
        "" if error is None else f"{error:+.1%}",
        "deviates" if each.deviates else "" if row.given or error is None else "fitted",
    )


def _flat(parameters: Mapping[str, Any], path: str = "") -> list[tuple[str, str]]:
    """Return a line for each table of an experiment: its path, and its keys with their values."""
    own = {key: value for key, value in parameters.items() if not _tables(value)}
    found = []
    if own:
        found.append((path or "file", ", ".join(f"{k} {_text(v)}" for k, v in own.items())))
    for key, value in parameters.items():
        under = f"{path}.{key}" if path else key
        for each in _tables(value):
            found += _flat(each, under)
    return found


def _tables(value: Any) -> list[Mapping[str, Any]]:
    if isinstance(value, dict):
        return [value]
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        return value
    return []


def _text(value: Any) -> str:
    return " ".join(map(_text, value)) if isinstance(value, list) else str(value)
