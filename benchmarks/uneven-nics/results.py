"""The results of a run: rows for JSON, targets, and a table for the terminal."""

from __future__ import annotations

from dataclasses import dataclass, field

from _harness.report import Row, Target
from _harness.summary import Summary, percentile
from cases import CASES, CONTESTANTS, EVEN, MOST_OVER_BOUND, SLACKLINE, Case, case_seconds
from rich.table import Table


@dataclass(kw_only=True)
class Results:
    """The times of all_reduces of one size in seconds, by case and contestant."""

    nbytes: int
    taken: dict[tuple[Case, str], list[float]] = field(default_factory=dict)
    skipped: str = ""
    """The reason why nothing was measured; empty if it was."""

    def over_bound(self, case: Case, contestant: str) -> float | None:
        """Return the ratio of the median time to the case's bound; None if it was not measured."""
        sample = self.taken.get((case, contestant))
        return percentile(sample, 50) / case_seconds(case, self.nbytes) if sample else None

    def rows(self) -> list[Row]:
        if self.skipped:
            return [Row(labels={"bytes": self.nbytes}, skipped=self.skipped)]
        return [
            Row(
                labels={"case": case.name, "contestant": contestant, "bytes": self.nbytes},
                values={
                    **Summary.of_seconds(sample).values(),
                    "bound_us": round(case_seconds(case, self.nbytes) * 1e6, 1),
                    "over_bound": round(self.over_bound(case, contestant) or 0, 3),
                },
            )
            for (case, contestant), sample in self.taken.items()
        ]

    def targets(self) -> list[Target]:
        """Return a target for each uneven case, relative to what even ports reach."""
        even = self.over_bound(EVEN, SLACKLINE)
        targets = []
        for case in CASES[1:]:
            over = self.over_bound(case, SLACKLINE)
            targets.append(
                Target(
                    name=f"{case.name}: over the bound, relative to even ports",
                    target=MOST_OVER_BOUND,
                    measured=None if over is None or even is None else round(over / even, 3),
                    bound="at most",
                )
            )
        return targets

    def tables(self) -> list[Table]:
        if self.skipped:
            return []
        title = f"all_reduce of {self.nbytes // 10**6} MB: s (10 % to 90 %), times the bound"
        table = Table("case", "bound", *CONTESTANTS, title=title)
        for case in CASES:
            cells = [case.name, f"{case_seconds(case, self.nbytes):.2f}"]
            for contestant in CONTESTANTS:
                sample = self.taken.get((case, contestant))
                if not sample:
                    cells.append("-")
                    continue
                low, median, high = (percentile(sample, p) for p in (10, 50, 90))
                over = self.over_bound(case, contestant)
                cells.append(f"{median:.2f} ({low:.2f}-{high:.2f}) {over:.2f}x")
            table.add_row(*cells)
        return [table]
