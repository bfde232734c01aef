"""The tables and the targets of the figures that the stages have noted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _harness.report import Row, Target
from rich.table import Table
from runner import Outcome
from stages import STAGES

__all__ = ["read", "rows", "stage_table", "tables", "targets"]

_MOST_DEATH_S = 6.0
"""The time limit of the operations in the stage, and one second."""
_LEAST_RATIO = 0.95


def read(file: Path) -> list[dict[str, Any]]:
    """Return the figures of a results file, in the order in which they were noted."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def rows(figures: Sequence[dict[str, Any]]) -> list[Row]:
    return [
        Row(
            labels={name: each[name] for name in ("stage", "rank", "figure")},
            values=each.get("values", {}),
            skipped=each.get("skipped"),
        )
        for each in figures
    ]


def stage_table(outcomes: Sequence[Outcome], *, cpu: bool) -> Table:
    table = Table("stage", "ranks ended with", "seconds", "shown", title="stages")
    shown = {stage.name: stage.shown for stage in STAGES}
    for each in outcomes:
        what = (shown[each.stage] or "nothing without a device") if cpu else "all of it"
        table.add_row(each.stage, " ".join(each.ended), f"{each.seconds:.1f}", what)
    return table


def tables(figures: Sequence[dict[str, Any]]) -> list[Table]:
    """Return one table for each stage with figures; the wrong results of all ranks come first."""
    found = []
    for name in dict.fromkeys(each["stage"] for each in figures):
        table = Table("rank", "figure", "values", title=name)
        mine = [each for each in figures if each["stage"] == name]
        for each in sorted(mine, key=lambda each: each["figure"] != "wrong results"):
            skipped = each.get("skipped")
            told = f"skipped: {skipped}" if skipped else _told(each["values"])
            table.add_row(str(each["rank"]), each["figure"], told)
        found.append(table)
    return found


def _told(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value != "")


def targets(
    figures: Sequence[dict[str, Any]], outcomes: Sequence[Outcome], *, cpu: bool
) -> list[Target]:
    """Return the targets; those that the CPU cannot meet or miss are not measured there."""

    def values(figure: str, name: str) -> list[float]:
        return [
            each["values"][name]
            for each in figures
            if each["figure"] == figure and "values" in each
        ]

    wrong, died = values("wrong results", "count"), values("a rank dies", "seconds")
    ratios = [
        each["values"]["ratio"]
        for each in figures
        if each["figure"] == "products a second while a link blocks"
        and "values" in each
        and each["values"]["over"] == "slackline"
    ]
    failed = [each["values"]["failed"] for each in figures if "failed" in each.get("values", {})]
    return [
        Target(
            name="stages with a rank that failed or hung",
            target=0,
            measured=sum(each.failed for each in outcomes) if outcomes else None,
            bound="at most",
        ),
        Target(
            name="wrong results",
            target=0,
            measured=sum(wrong) if wrong else None,
            bound="at most",
        ),
        Target(
            name="tests that failed",
            target=0,
            measured=sum(failed) if failed else None,
            bound="at most",
        ),
        Target(
            name="a rank dies: seconds until the others have an error",
            target=_MOST_DEATH_S,
            measured=max(died, default=None),
            bound="at most",
        ),
        Target(
            name="products beside a link that blocks, over those alone",
            target=_LEAST_RATIO,
            measured=None if cpu else min(ratios, default=None),
        ),
    ]
