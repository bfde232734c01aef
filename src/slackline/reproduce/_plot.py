"""A plot of a comparison: published figures beside the simulator's figures."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from slackline._distribution import install
from slackline.errors import UsageError
from slackline.reproduce._compare import ComparedRow, Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw"]

_COLOURS = ("#1f4e9e", "#e15759", "#59a14f", "#f28e2b", "#76b7b2", "#b07aa1", "#9c755f")


def draw(comparison: Comparison, folder: Path) -> Path:
    """Draw a comparison as `folder/<table>.svg` and return the path.

    The file has no date, so equal figures give equal files; its description has the numbers as
    JSON. Raises UsageError where matplotlib is not installed, or the file cannot be written.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(f"plots need matplotlib: {install('plot')}") from None
    rows = comparison.rows
    lines = comparison.table.plot == "lines"
    figure = Figure(
        figsize=(8, 4.5) if lines else (8, 1.6 + 0.32 * len(rows)), layout="constrained"
    )
    panel = figure.subplots()
    (_lines if lines else _bars)(panel, rows)
    figure.suptitle(comparison.table.title, fontsize=10)
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, frameon=False, loc="outside lower center", ncols=3)
    numbers = {each.row.label: [each.row.measured, each.ours] for each in rows}
    path = folder / f"{comparison.table.name}.svg"
    metadata = {"Date": None, "Creator": None, "Description": json.dumps(numbers)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context({"svg.hashsalt": "slackline", "svg.fonttype": "none"}):
            figure.savefig(path, metadata=metadata)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    return path


def _bars(panel: "Axes", rows: tuple[ComparedRow, ...]) -> None:
    """Draw two horizontal bars for each row."""
    places = range(len(rows))
    published = [each.row.measured or 0 for each in rows]
    panel.barh([at - 0.2 for at in places], published, 0.38, label="published", color="#9d9da1")
    panel.barh(
        [at + 0.2 for at in places],
        [each.ours for each in rows],
        0.38,
        label="ours",
        color="#1f4e9e",
    )
    panel.set_yticks(list(places), [each.row.label for each in rows], fontsize=8)
    panel.margins(y=0.01)
    panel.invert_yaxis()
    panel.set_xlabel(", ".join(dict.fromkeys(each.row.unit for each in rows)))


def _lines(panel: "Axes", rows: tuple[ComparedRow, ...]) -> None:
    """Draw the simulator's figures as lines and published figures as marks.

    The part of a row's label before the first comma names the line.
    """
    series: dict[str, list[tuple[str, ComparedRow]]] = {}
    for each in rows:
        name, _, place = each.row.label.partition(", ")
        series.setdefault(name, []).append((place, each))
    for number, (name, points) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        panel.plot(
            [place for place, _ in points],
            [each.ours for _, each in points],
            color=colour,
            label=f"{name}, ours",
        )
        published = [
            (place, each.row.measured) for place, each in points if each.row.measured is not None
        ]
        if published:
            panel.plot(
                [place for place, _ in published],
                [value for _, value in published],
                "o",
                color=colour,
                label=f"{name}, published",
            )
    if all(each.ours >= 0 for each in rows):
        panel.set_ylim(bottom=0)
    panel.tick_params(axis="x", labelrotation=30, labelsize=8)
    panel.set_ylabel(rows[0].row.unit)
