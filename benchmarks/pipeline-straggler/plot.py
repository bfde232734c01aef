"""Plot the time of an iteration against the delay of the last link.

    python benchmarks/pipeline-straggler/main.py --part links-4 --json > 4.json
    python benchmarks/pipeline-straggler/main.py --part links-8 --json > 8.json
    python benchmarks/pipeline-straggler/plot.py 4.json 8.json iteration-time.svg

Lines are simulated times, marks are measured times. The script needs slackline-torch[plot].
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib
from contestants import ADAPTRA, AUTO, FIXED, GLOO_1F1B, GLOO_ZB, OURS_1F1B, OURS_ZB, READY
from matplotlib.axes import Axes
from matplotlib.figure import Figure

STYLES = {
    GLOO_1F1B: ("#b07aa1", "v"),
    GLOO_ZB: ("#9c755f", "^"),
    OURS_1F1B: ("#e15759", "s"),
    OURS_ZB: ("#f28e2b", "D"),
    FIXED: ("#76b7b2", "P"),
    ADAPTRA: ("#59a14f", "X"),
    READY: ("#9d9da1", "*"),
    AUTO: ("#1f4e9e", "o"),
}
SHOWN = ("healthy", "last link")


def draw(rows: list[dict[str, Any]]) -> Figure:
    """Return a figure with one panel for each number of stages."""
    sizes = sorted({row["stages"] for row in rows})
    figure = Figure(figsize=(5.6 * len(sizes), 5), layout="constrained")
    panels = figure.subplots(1, len(sizes), squeeze=False)[0]
    for panel, stages in zip(panels, sizes, strict=True):
        _panel(panel, [row for row in rows if row["stages"] == stages])
    handles, labels = panels[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2 * len(sizes), frameon=False)
    return figure


def _panel(panel: Axes, rows: list[dict[str, Any]]) -> None:
    for name, (colour, mark) in STYLES.items():
        mine = sorted((r for r in rows if r["contestant"] == name), key=lambda r: r["delay_ms"])
        delays = [row["delay_ms"] for row in mine]
        simulated = [row["simulated_ms"] / 1e3 for row in mine]
        measured = [row["median_ms"] / 1e3 for row in mine]
        panel.plot(delays, simulated, color=colour, linewidth=1)
        panel.plot(delays, measured, mark, color=colour, markersize=5, label=name)
    stages, microbatches = rows[0]["stages"], rows[0]["microbatches"]
    panel.set_title(f"{stages} stages, {microbatches} microbatches", fontsize=11)
    panel.set_xlabel("delay of the last link, each way, ms")
    panel.set_ylabel("iteration, s")
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)


def main() -> None:
    *sources, target = map(Path, sys.argv[1:])
    rows = [row for source in sources for row in json.loads(source.read_text())["rows"]]
    chosen = [r for r in rows if r["part"].startswith("links") and r.get("network") in SHOWN]
    figure = draw([row for row in chosen if "median_ms" in row])
    metadata = {"Date": None} if target.suffix == ".svg" else None
    with matplotlib.rc_context({"svg.hashsalt": "slackline", "svg.fonttype": "none"}):
        figure.savefig(target, dpi=110, metadata=metadata)


if __name__ == "__main__":
    main()
