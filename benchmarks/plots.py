"""The figures of docs/benchmarks.md, drawn from the tables of the pages.

    python benchmarks/plots.py     writes docs/plots/*.svg; `make plots` does the same

The metadata of each figure has the numbers that the figure shows; a test compares these numbers
with the table. Needs slackline-torch[plot].
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "plots"
COLOURS = ("#1f4e9e", "#e15759", "#59a14f", "#f28e2b", "#76b7b2")
_NUMBER = re.compile(r"\d[\d,]*\.?\d*")


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A figure: columns of a table."""

    name: str
    """The name of the file, without its ending."""
    page: str
    """The page with the table, within the repository."""
    head: str
    """The beginning of the table's first line."""
    columns: tuple[tuple[int, str], ...]
    """The columns to draw, counted from 0, each with its name in the legend."""
    title: str
    unit: str
    rows: tuple[int, ...] | None = None
    """The rows to draw; None stands for all rows."""
    bars: bool = False
    """Whether to draw a horizontal bar for each row instead of lines over the rows."""
    logarithmic: bool = False
    level: float | None = None
    """A value to mark, such as 1 for a ratio."""


PLOTS = (
    Plot(
        name="training-step",
        page="docs/benchmarks.md",
        head="| | DDP over gloo / PCCO",
        columns=((1, "DDP over gloo / PCCO"),),
        title="Time of a step: DDP over gloo / PCCO",
        unit="ratio",
        bars=True,
        level=1,
    ),
    Plot(
        name="exposed",
        page="docs/benchmarks.md",
        head="| communication over computation | floor | PCCO",
        columns=(
            (2, "PCCO"),
            (3, "DDP over gloo, best bucket"),
            (4, "DDP over gloo, 25 MB"),
            (5, "blocking"),
            (1, "floor"),
        ),
        title="Exposed communication, 4 hosts at 200 Mbit/s, by communication over computation",
        unit="ms of a step",
        bars=True,
    ),
    Plot(
        name="all-reduce",
        page="docs/benchmarks.md",
        head="| ranks, size | gloo",
        columns=((2, "TCP rails"), (1, "gloo"), (4, "shared memory"), (6, "registered memory")),
        title="all_reduce on one host, by ranks and size (of a range, its lower end)",
        unit="us",
        logarithmic=True,
    ),
    Plot(
        name="wire",
        page="docs/benchmarks.md",
        head="| ns a byte, 16 MiB",
        columns=((1, "slackline over TCP"), (2, "gloo"), (3, "plain ring")),
        title="Processor time of a byte on the wire, all_reduce of 16 MiB",
        unit="ns",
        bars=True,
    ),
    Plot(
        name="pipeline",
        page="docs/benchmarks.md",
        head="| 4 stages, 12 microbatches",
        columns=(
            (4, "auto, 8 activations"),
            (1, "1F1B over gloo"),
            (2, "1F1B over slackline"),
            (3, "zero bubble over slackline"),
            (5, "auto, no cap"),
        ),
        title="An iteration of a pipeline, by the delay of its links",
        unit="ms",
    ),
    Plot(
        name="circuit",
        page="benchmarks/circuit-throughput-latency/README.md",
        head="| message | first, cut-through | last | first, store",
        columns=((2, "cut-through"), (4, "store-and-forward")),
        title="Aggregation node of 4 ports, simulated: cycles to the last beat of sums, by message",
        unit="cycles",
        logarithmic=True,
    ),
    Plot(
        name="circuit-messages",
        page="docs/circuits/node.md",
        head="| message, Gb/s",
        columns=tuple(
            (column, f"wire of {cycles} cycles")
            for column, cycles in enumerate((0, 16, 64, 161, 322), 1)
        ),
        title="Aggregation node, 16 lanes, 16 slots, simulated: throughput at 322 MHz, by message",
        unit="Gb/s",
    ),
)


def number(cell: str) -> float:
    """Return the first number of a cell, in microseconds if the number has a unit of time.

    Raises ValueError for a cell without a number.
    """
    found = _NUMBER.search(cell)
    if found is None:
        raise ValueError(f"a cell to draw must have a number, not {cell!r}")
    value = float(found[0].replace(",", ""))
    return value * 1000 if re.search(r"\d \**ms", cell) else value


def table(page: Path, head: str) -> Iterator[list[str]]:
    """Yield the cells of each row of the table whose first line begins with `head`.

    Raises ValueError if the page has no such table.
    """
    lines = page.read_text().splitlines()
    starts = [at for at, line in enumerate(lines) if line.startswith(head)]
    if not starts:
        raise ValueError(f"{page.name} has no table that begins with {head!r}")
    for line in lines[starts[0] + 2 :]:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def data(plot: Plot) -> dict[str, dict[str, float]]:
    """Return the numbers of a figure by the name of the column and the name of the row."""
    rows = list(table(ROOT / plot.page, plot.head))
    chosen = rows if plot.rows is None else [rows[at] for at in plot.rows]
    return {
        name: {row[0].strip("* "): number(row[column]) for row in chosen}
        for column, name in plot.columns
    }


def shown(name: str) -> dict[str, dict[str, float]]:
    """Return the numbers that the figure in the repository shows."""
    found = re.search(
        r"<dc:description>(.*)</dc:description>", (FOLDER / f"{name}.svg").read_text()
    )
    if found is None:
        raise ValueError(f"{name}.svg does not say what it shows")
    numbers: dict[str, dict[str, float]] = json.loads(found[1].replace("&quot;", '"'))
    return numbers


def _bars(panel: Axes, numbers: dict[str, dict[str, float]]) -> None:
    height = 0.8 / len(numbers)
    names = list(next(iter(numbers.values())))
    for series, (name, values) in enumerate(numbers.items()):
        places = [row + series * height for row in range(len(names))]
        panel.barh(places, list(values.values()), height, label=name, color=COLOURS[series])
    middle = 0.4 - height / 2
    panel.set_yticks([row + middle for row in range(len(names))], names, fontsize=9)
    panel.invert_yaxis()


def _lines(panel: Axes, numbers: dict[str, dict[str, float]]) -> None:
    for series, (name, values) in enumerate(numbers.items()):
        panel.plot(list(values), list(values.values()), "o-", label=name, color=COLOURS[series])
    panel.set_ylim(bottom=None if panel.get_yscale() == "log" else 0)


def draw(plot: Plot, numbers: dict[str, dict[str, float]]) -> Figure:
    """Return the figure with these numbers."""
    rows = len(next(iter(numbers.values())))
    size = (8, 1.6 + 0.16 * rows * (1 + len(numbers))) if plot.bars else (8, 4)
    figure = Figure(figsize=size, layout="constrained")
    panel = figure.subplots()
    if plot.logarithmic:
        panel.set_yscale("log")
    (_bars if plot.bars else _lines)(panel, numbers)
    (panel.set_xlabel if plot.bars else panel.set_ylabel)(plot.unit)
    if plot.level is not None:
        panel.axvline(plot.level, color="#444444", linewidth=1)
    panel.set_title(plot.title, fontsize=10)
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)
    if len(numbers) > 1:
        figure.legend(fontsize=8, frameon=False, loc="outside lower center", ncols=3)
    return figure


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for plot in PLOTS:
        numbers = data(plot)
        metadata = {"Date": None, "Creator": None, "Description": json.dumps(numbers)}
        with matplotlib.rc_context({"svg.hashsalt": "slackline", "svg.fonttype": "none"}):
            draw(plot, numbers).savefig(FOLDER / f"{plot.name}.svg", metadata=metadata)


if __name__ == "__main__":
    main()
