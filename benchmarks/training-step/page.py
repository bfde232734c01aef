"""Print the table of docs/benchmarks.md, a row for each cell, from the JSON of earlier runs.

python benchmarks/training-step/page.py FILE...

Bold marks a missed target. The rows with the smallest ratios to PCCO come first.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cases import (
    CLIPPING,
    DIGITS,
    FSDP2,
    GLOO,
    GPT,
    LAYERS,
    PCCO,
    RESNET,
    SLACKLINE,
    TENSORS,
    TINY,
    VIT,
    Cell,
)
from results import Results
from targets import targets

TITLES = {
    DIGITS: "digits",
    GPT: "GPT of 6 layers",
    LAYERS: "24 layers of 2 MB",
    TENSORS: "1,000 tensors of 1 to 64 KiB",
    VIT: "vision transformer of 6 layers",
    RESNET: "residual network",
    TINY: "400 tensors of 1 to 16 KiB",
    CLIPPING: "GPT with clipped gradients",
}
HEAD = (
    "",
    "DDP over gloo / PCCO, target 1.0",
    "DDP over slackline / PCCO, target 0.98 (4 hosts 1.05)",
    "FSDP2 over gloo / over slackline, target 1.3 (lab 1.0)",
    "choice of PCCO",
    "settings of DDP over gloo",
    "settings of DDP over slackline",
    "commit, date",
)


def title(cell: Cell) -> str:
    """Return the name of a cell on the page, for example "1 host, 2 ranks, digits"."""
    network = cell.network.title.replace(", ", " at ") if cell.network.rate_bps else None
    place = cell.network.title if network is None else f"lab, {network}"
    return f"{place}, {TITLES[cell.model]}"


def lines(results: Results) -> Iterator[str]:
    """Yield the lines of the table in Markdown."""
    yield f"| {' | '.join(HEAD)} |".replace("|  |", "| |")
    yield "|---" * len(HEAD) + "|"
    missed = {each.name for each in targets(results) if each.met is False}
    rows = [_row(results, cell, missed) for cell in results.cells()]
    for _, row in sorted(rows):
        yield f"| {' | '.join(row)} |"


def _row(results: Results, cell: Cell, missed: set[str]) -> tuple[float, list[str]]:
    """Return the smaller ratio of DDP to PCCO, and the row's texts."""
    best = {backend: results.best_ddp(cell, backend) for backend in (GLOO, SLACKLINE)}
    gloo, ours = (results.ratio(cell, each, PCCO) for each in best.values())
    shown = (
        (gloo, "DDP over gloo, best settings / PCCO"),
        (ours, "DDP over slackline, best settings / PCCO"),
        (
            results.ratio(cell, FSDP2[GLOO], FSDP2[SLACKLINE]),
            "FSDP2 over gloo / FSDP2 over slackline",
        ),
    )
    loaded = results.loaded[cell, PCCO]
    texts = [
        title(cell),
        *(_ratio(ratio, missed=f"{cell.name}: {name}" in missed) for ratio, name in shown),
        str(loaded["choice"]),
        *("" if each is None else each.settings for each in best.values()),
        f"`{loaded['commit']}`, {str(loaded['date']).split()[0]}",
    ]
    return min(ratio for ratio in (gloo, ours, float("inf")) if ratio is not None), texts


def _ratio(ratio: float | None, *, missed: bool) -> str:
    if ratio is None:
        return ""
    return f"**{ratio:.2f}**" if missed else f"{ratio:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description="the table of docs/benchmarks.md, from JSON")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="the JSON of a run")
    results = Results()
    for file in parser.parse_args().files:
        results.load(json.loads(file.read_text()))
    print("\n".join(lines(results)))


if __name__ == "__main__":
    main()
