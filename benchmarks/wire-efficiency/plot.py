"""Draw the throughput of a series of allreduces in which one of two NICs is cut and comes back.

    python benchmarks/wire-efficiency/main.py --part failover --json > failover.json
    python benchmarks/wire-efficiency/plot.py failover.json docs/plots/failover.svg

The metadata of the figure has the throughput that the figure shows. The script needs
slackline-torch[plot].
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from series import Series

COLOURS = {"slackline tcp": "#1f4e9e", "gloo": "#e15759"}


def series_of(report: Mapping[str, Any]) -> list[Series]:
    """Return the series in a JSON object of the benchmark.

    Raises ValueError if there is none.
    """
    found = [Series.of_row(row) for row in report["rows"] if "ended_ms" in row]
    if not found:
        raise ValueError("the report has no series: run the benchmark with --part failover")
    return found


def gloos_end(report: Mapping[str, Any]) -> str:
    """Return a sentence for the end of gloo on a NIC that stays down; empty if not measured."""
    for row in report["rows"]:
        if row["what"] == "a NIC is cut and stays down" and "error" in row:
            return (
                f"If the NIC stays down, gloo's all_reduces fail {row['failed_after_s']:.0f} s "
                f"after the cut, at the timeout of their group ({row['timeout_s']:.0f} s)."
            )
    return ""


def shown(series: Sequence[Series]) -> dict[str, dict[str, list[float]]]:
    """Return the numbers that the figure shows, by system: edges in s and MB/s between them."""
    found = {}
    for each in series:
        edges, rates = each.steps()
        found[each.system] = {"edges_s": edges, "MB_per_s": rates}
    return found


def draw(series: Sequence[Series], note: str) -> Figure:
    """Return the figure of the series, with `note` below it."""
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    panel = figure.subplots()
    for each in series:
        edges, rates = each.steps()
        colour = COLOURS[each.system]
        panel.stairs(rates, edges, baseline=None, label=each.system, color=colour, linewidth=1.5)
    _mark_outage(panel, series[0])
    size = f"{series[0].nbytes >> 20} MiB"
    title = f"One of two NICs of a host is cut during all_reduces of {size}, 4 hosts"
    panel.set_title(title, fontsize=10)
    panel.set_xlabel(f"s\n{note}" if note else "s", fontsize=9)
    panel.set_ylabel("MB/s reduced")
    panel.set_xlim(left=0)
    _limit(panel, series)
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)
    figure.legend(fontsize=8, frameon=False, loc="outside lower center", ncols=3)
    return figure


def _limit(panel: Axes, series: Sequence[Series]) -> None:
    """End the axis at twice the highest rate before the cut, and write higher rates as numbers.

    Operations that have waited for the NIC end at the same moment, and their rate is only a burst.
    """
    before = [
        rate
        for each in series
        for edge, rate in zip(each.steps()[0], each.steps()[1], strict=False)
        if edge < each.down_ms / 1e3
    ]
    top = 2 * max(before)
    panel.set_ylim(0, top)
    for each in series:
        edges, rates = each.steps()
        for edge, rate in zip(edges, rates, strict=False):
            if rate > top:
                label = f" {rate:.0f} MB/s for a moment"
                panel.text(edge, top, label, va="top", fontsize=8, color=COLOURS[each.system])


def _mark_outage(panel: Axes, series: Series) -> None:
    """Shade the time for which the NIC is down."""
    down_s, up_s = series.down_ms / 1e3, series.up_ms / 1e3
    panel.axvspan(down_s, up_s, color="#888888", alpha=0.15, linewidth=0, label="NIC down")


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    report = json.loads(source.read_text())
    series = series_of(report)
    description = json.dumps(shown(series))
    metadata = {"Date": None, "Creator": None, "Description": description}
    with matplotlib.rc_context({"svg.hashsalt": "slackline", "svg.fonttype": "none"}):
        figure = draw(series, gloos_end(report))
        figure.savefig(target, metadata=metadata if target.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
