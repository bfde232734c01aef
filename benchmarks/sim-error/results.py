"""Measured and simulated times side by side: errors, repeatability, rows and targets."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from _harness.report import Row, Target
from _harness.summary import Summary
from cases import CALIBRATION
from rich.table import Table

MEAN_PERCENT, WORST_PERCENT = 2.0, 5.0


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A case that was measured in one or more lives, and simulated."""

    part: str
    case: str
    summary: Summary
    """The summary of all measured times."""
    repeat_percent: float | None
    """The difference of the medians of the lives; None with one life."""
    simulated_s: float
    pause_s: float | None = None
    """The measured seconds between a rank's call and its next barrier; None without barriers."""

    @classmethod
    def of_lives(
        cls,
        *,
        part: str,
        case: str,
        lives_s: Sequence[Sequence[float]],
        simulated_s: float,
        pause_s: float | None = None,
    ) -> Self:
        """Return the comparison with measured times in seconds, by life.

        Each life has new processes and new connections.
        """
        medians = [statistics.median(life) for life in lives_s]
        return cls(
            part=part,
            case=case,
            summary=Summary.of_seconds([time_s for life in lives_s for time_s in life]),
            repeat_percent=100 * (max(medians) / min(medians) - 1) if len(medians) > 1 else None,
            simulated_s=simulated_s,
            pause_s=pause_s,
        )

    @property
    def error_percent(self) -> float:
        """The error of the simulated time against the median of the measured times."""
        return 100 * (self.simulated_s * 1e6 / self.summary.median_us - 1)

    def row(self) -> Row:
        """Return the times, the error and the repeatability as a row of the report."""
        repeat = self.repeat_percent
        values = {
            **self.summary.values(),
            "simulated_us": round(self.simulated_s * 1e6, 2),
            "error_percent": round(self.error_percent, 2),
        }
        if repeat is not None:
            values["repeat_percent"] = round(repeat, 2)
        if self.pause_s is not None:
            values["pause_us"] = round(self.pause_s * 1e6, 2)
        return Row(labels={"part": self.part, "case": self.case}, values=values)


def targets_of(comparisons: Sequence[Comparison]) -> list[Target]:
    """Return the targets for all judged cases; the cases of the calibration do not count."""
    errors = [abs(each.error_percent) for each in comparisons if each.part != CALIBRATION]
    return [
        Target(
            name=f"simulated against measured, {name}, %",
            target=target,
            measured=found,
            bound="at most",
        )
        for name, target, found in (
            ("mean", MEAN_PERCENT, statistics.mean(errors) if errors else None),
            ("worst", WORST_PERCENT, max(errors) if errors else None),
        )
    ]


def table_of(comparisons: Sequence[Comparison]) -> Table:
    """Return the comparisons as a table; "differ" is the difference between the lives."""
    table = Table("part", "case", "measured ms", "p10-p90", "differ %", "simulated ms", "error %")
    for each in comparisons:
        summary, repeat = each.summary, each.repeat_percent
        table.add_row(
            each.part,
            each.case,
            f"{summary.median_us / 1e3:.3f}",
            f"{summary.p10_us / 1e3:.3f}-{summary.p90_us / 1e3:.3f}",
            "-" if repeat is None else f"{repeat:.1f}",
            f"{each.simulated_s * 1e3:.3f}",
            f"{each.error_percent:+.1f}",
        )
    return table
