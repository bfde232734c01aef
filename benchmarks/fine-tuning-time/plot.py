"""Draw the loss over time of the contestants on one network, from the records of the benchmark.

    python benchmarks/fine-tuning-time/main.py --part curve --json > curve.json
    python benchmarks/fine-tuning-time/main.py --part lab-200m --json > lab-200m.json
    python benchmarks/fine-tuning-time/plot.py curve.json lab-200m.json docs/plots/fine-tuning.svg

The metadata of the figure has the steps that the figure shows. The script needs
slackline-torch[plot].
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import matplotlib
from cases import BF16, CURVE_MEAN, CUT, GLOO, GLOO_TENTH, LOSS, OVERLAP, TENTH
from matplotlib.figure import Figure

SHOWN = {
    GLOO_TENTH.name: "#f28e2b",
    GLOO.name: "#e15759",
    TENTH.name: "#59a14f",
    OVERLAP.name: "#76b7b2",
    CUT.name: "#7a3db8",
    BF16.name: "#1f4e9e",
}
"""The contestants that are drawn, with their colours."""


def shown(curve: Mapping[str, Any], steps: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the numbers of the figure: the time of each step in minutes, by contestant.

    `curve` and `steps` are JSON objects of the benchmark.
    """
    losses = {row["gradients"]: row["losses"] for row in curve["rows"] if "losses" in row}
    found = {}
    for row in steps["rows"]:
        name = row.get("contestant", "")
        if name not in SHOWN or "step_s" not in row:
            continue
        kind = "bf16" if name == BF16.name else "fp32"
        smooth = [
            round(fmean(losses[kind][end - CURVE_MEAN : end]), 3)
            for end in range(CURVE_MEAN, len(losses[kind]) + 1)
        ]
        ended_s, now_s = [], 0.0
        reached = next((at for at, loss in enumerate(smooth) if loss <= LOSS), len(smooth))
        middle = (reached + CURVE_MEAN) // 2
        for number in range(len(losses[kind])):
            now_s += row["step_s"]
            if "cut_step_s" in row and number == middle:
                now_s += row["cut_step_s"] - row["step_s"]
            elif "cut_step_s" in row and number > middle:
                now_s += row["after_s"] - row["step_s"]
            ended_s.append(now_s)
        minutes = [round(each / 60, 3) for each in ended_s[CURVE_MEAN - 1 :]]
        found[name] = {"minutes": minutes[: reached + 1], "loss": smooth[: reached + 1]}
    return found


def draw(numbers: Mapping[str, Mapping[str, Any]], title: str) -> Figure:
    """Return the figure of the numbers of `shown`."""
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    panel = figure.subplots()
    for name, colour in SHOWN.items():
        if name in numbers:
            each = numbers[name]
            panel.plot(each["minutes"], each["loss"], label=name, color=colour, linewidth=1.5)
            panel.plot(each["minutes"][-1], each["loss"][-1], "o", color=colour, markersize=5)
    panel.axhline(LOSS, color="#888888", linewidth=0.8, linestyle="--")
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panel.set_title(title, fontsize=10)
    panel.set_xlabel("minutes of training (logarithmic)", fontsize=9)
    panel.set_ylabel(f"loss in nats a byte, mean of {CURVE_MEAN} steps")
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)
    figure.legend(fontsize=8, frameon=False, loc="outside lower center", ncols=2)
    return figure


def main() -> None:
    curve, steps, target = map(Path, sys.argv[1:])
    numbers = shown(json.loads(curve.read_text()), json.loads(steps.read_text()))
    metadata = {"Date": None, "Creator": None, "Description": json.dumps(numbers)}
    with matplotlib.rc_context({"svg.hashsalt": "slackline", "svg.fonttype": "none"}):
        figure = draw(numbers, "A GPT-2 of 28.6 M parameters on two hosts at 200 Mbit/s")
        figure.savefig(target, metadata=metadata if target.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
