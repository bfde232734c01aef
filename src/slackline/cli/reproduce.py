"""`slackline reproduce`: published tables beside the simulator's figures, and a real accuracy."""

import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
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
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print sections as in docs/reproduce.md.")
    ] = False,
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
        if (
            only
            or as_json
            or as_markdown
            or names
            or any(each is not None for each in (plot, source, save))
        ):
            raise UsageError(
                f"options of the tables cannot precede {context.invoked_subcommand}: "
                f"slackline reproduce {context.invoked_subcommand} --help lists its own"
            )
        return 0
    if as_json and as_markdown:
        raise UsageError("--json and --markdown exclude each other: give one of them")
    folder = Folder() if source is None else Folder(source)
    if save is not None:
        if only or as_json or as_markdown or names or plot is not None:
            raise UsageError(
                "--save only copies all tables: leave out --only, --json, --markdown, --list "
                "and --plot"
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
        if as_markdown:
            print(_markdown(found[-1]))
        elif not as_json:
            _print(found[-1])
        if plot is not None:
            path = draw(found[-1], plot)
            if not as_json and not as_markdown:
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
                "average": each.row.average,
                "standard_error": each.row.standard_error,
                "ours": each.ours,
                "error": each.error,
                "standard_errors": each.standard_errors,
                "parameters_given": each.row.given,
                "deviates": each.deviates,
            }
            for each in comparison.rows
        ],
    }


def _print(comparison: "Comparison") -> None:
    table = comparison.table
    print(f"{table.name}: {table.title}")
    of_published = f" ({table.published_method})" if table.published_method else ""
    print(f"  published{of_published}: {table.source}")
    print(f"  ours ({table.method}): slackline simulate {table.experiment}")
    for name, values in _flat(comparison.parameters):
        print(f"  {name}: {values}")
    for title, head, cells in _parts(comparison):
        print(f"  {title}:")
        _print_rows(head, cells)
    if table.explanation:
        print(f"  {' '.join(table.explanation.split())}")
    print()


def _print_rows(head: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, header_style="")
    for number, name in enumerate(head):
        shown.add_column(name, justify="right" if number else "left")
    for row in cells:
        shown.add_row(*row)
    Console(highlight=False, soft_wrap=True, width=_WIDTH).print(shown)


def _markdown(comparison: "Comparison") -> str:
    """Return a comparison as a section of docs/reproduce.md."""
    table = comparison.table
    of_published = f" ({table.published_method})" if table.published_method else ""
    source = f"{table.title}. Published{of_published}: {table.source}. "
    source += f"Ours: {table.method}, `{table.experiment}`."
    found = [f"### {table.name}", textwrap.fill(" ".join(source.split()), 120)]
    for title, head, cells in _parts(comparison):
        lines = [f"| {' | '.join(row)} |" for row in ([head[0], *head[1:]], *cells)]
        lines.insert(1, "|---" * len(head) + "|")
        found += [f"{title[0].upper()}{title[1:]}:", "\n".join(lines)]
    if table.explanation:
        found.append(textwrap.fill(" ".join(table.explanation.split()), 120))
    return "\n\n".join(found) + "\n"


def _parts(
    comparison: "Comparison",
) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """Return the title, the head and the cells of each table of a comparison."""
    parts = []
    for title, rows in (
        ("predicted", comparison.predicted),
        ("fitted or assumed", comparison.fitted),
        ("not published", comparison.unpublished),
    ):
        if not rows:
            continue
        head: tuple[str, ...] = ("", "published", "ours", "error", "")
        averages = any(each.row.average is not None for each in rows)
        if averages:
            head = ("", "published", "average", "ours", "error", "standard errors", "")
        if rows == comparison.unpublished:
            head = ("", "ours")
        parts.append((title, head, [_cells(each, len(head)) for each in rows]))
    return parts


def _cells(each: "ComparedRow", columns: int) -> tuple[str, ...]:
    row, error, away = each.row, each.error, each.standard_errors

    def shown(value: float | None) -> str:
        return "" if value is None else f"{show_number(value)} {row.unit}"

    if columns == 2:
        return row.label, shown(each.ours)
    first = [row.label, shown(row.published)]
    after = [shown(each.ours), "" if error is None else f"{100 * error:+.1f} %"]
    if columns == 7:
        spread = "" if row.standard_error is None else f" ± {show_number(row.standard_error)}"
        first.append(
            "" if row.average is None else f"{show_number(row.average)}{spread} {row.unit}"
        )
        after.append("" if away is None else f"{away:+.1f}")
    return (*first, *after, "deviates" if each.deviates else "")


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
