"""Published rows to which no parameter was fitted: predictions, and their targets.

The rates of delegation were fixed on runs with 7 and 14 billion parameters and committed before the
rows of `JUDGED` were read. These rows need no lab: they are compared with the averages of the
publication's artifact.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from _harness.report import Row, Target
from cases import NOT_FITTED
from rich.table import Table

from slackline.reproduce import ComparedRow, Folder, compare

JUDGED = ("pipeline-30b", "pipeline-60b", "pipeline-changing-links")
"""The tables that were read after the parameters had been committed."""
OWN = "pipeline-on-a-lab-1-mib"
"""The table of this project's own pipelines whose messages take time in the hosts' memory."""
OWN_PERCENT = 5.0
MEAN_PERCENT, WORST_PERCENT = 6.0, 15.0
STANDARD_ERRORS = 2.0
"""An error within so many standard errors of the artifact's average does not count as the worst."""


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """A published row beside the prediction."""

    table: str
    row: ComparedRow

    @property
    def error_percent(self) -> float:
        """The error against the artifact's average, or the printed figure."""
        assert self.row.error is not None
        return 100 * self.row.error

    @property
    def within_noise(self) -> bool:
        """Whether the error is within the standard errors that are allowed."""
        away = self.row.standard_errors
        return away is not None and abs(away) <= STANDARD_ERRORS

    def report_row(self) -> Row:
        """Return the figures as a row of the report."""
        row, away = self.row.row, self.row.standard_errors
        values: dict[str, float] = {
            "simulated_ms": round(self.row.ours, 1),
            "error_percent": round(self.error_percent, 2),
        }
        if row.published is not None:
            values["published_ms"] = row.published
        if row.average is not None and row.standard_error is not None and away is not None:
            values["average_ms"], values["standard_error_ms"] = row.average, row.standard_error
            values["standard_errors"] = round(away, 2)
        return Row(
            labels={"part": NOT_FITTED, "table": self.table, "case": row.label}, values=values
        )


def judged(table: str, row: ComparedRow) -> bool:
    """Return whether a predicted row of a table counts."""
    return table == OWN or delegated(row)


def delegated(row: ComparedRow) -> bool:
    """Return whether a row is a published figure of delegation."""
    return "delegation" in row.row.case and row.row.published is not None


def predictions(quick: bool = False) -> list[Predicted]:
    """Return the judged rows; with `quick` those of two tables alone."""
    folder = Folder()
    return [
        Predicted(table=table.name, row=row)
        for table in folder.tables((*(JUDGED[:1] if quick else JUDGED), OWN))
        for row in compare(table, folder).predicted
        if judged(table.name, row)
    ]


def targets_of_predictions(found: Sequence[Predicted]) -> list[Target]:
    """Return the targets; the worst error is that of the rows beyond their standard errors."""
    own = [abs(each.error_percent) for each in found if each.table == OWN]
    others = [each for each in found if each.table != OWN]
    errors = [abs(each.error_percent) for each in others]
    beyond = [abs(each.error_percent) for each in others if not each.within_noise]
    worst = max(beyond, default=0.0) if errors else None
    return [
        Target(
            name=f"not fitted, delegation, {name}, %",
            target=target,
            measured=value,
            bound="at most",
        )
        for name, target, value in (
            ("mean", MEAN_PERCENT, statistics.mean(errors) if errors else None),
            (f"worst beyond {STANDARD_ERRORS:g} standard errors", WORST_PERCENT, worst),
            ("this project's own, worst", OWN_PERCENT, max(own) if own else None),
        )
    ]


def table_of_predictions(found: Sequence[Predicted]) -> Table:
    """Return the rows as a table."""
    table = Table(
        "table", "case", "published ms", "average ms", "simulated ms", "error %", "standard errors"
    )
    for each in found:
        row, away = each.row.row, each.row.standard_errors
        table.add_row(
            each.table,
            row.label,
            "-" if row.published is None else f"{row.published:.0f}",
            "-" if row.average is None else f"{row.average:.1f} ± {row.standard_error:.1f}",
            f"{each.row.ours:.1f}",
            f"{each.error_percent:+.1f}",
            "-" if away is None else f"{away:+.1f}",
        )
    return table
