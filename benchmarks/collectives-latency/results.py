"""The results of a run: rows for JSON, targets over all cells, and a table for each part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from _harness.report import Row, Scalar, Target
from _harness.summary import Summary
from cases import (
    AHEAD_OF_OPENMPI,
    CONTESTANTS,
    CROWDED,
    CROWDED_OPENMPI_OVER_OURS,
    CROWDED_SIZES,
    EMPTY,
    GLOO_OVER_OURS,
    OURS_OVER_OPENMPI,
    Case,
    Part,
)
from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A case of one part."""

    part: Part
    case: Case

    @property
    def name(self) -> str:
        return f"{self.part.name}, {self.case.name}"


@dataclass(kw_only=True)
class Results:
    """The times of all contestants so far, or the reasons why there are none."""

    times: dict[Cell, Mapping[str, Summary | str]] = field(default_factory=dict)
    empty: dict[tuple[Part, str], Summary] = field(default_factory=dict)
    """The time of an empty call, by part and operation."""

    def record(
        self, cell: Cell, samples: Mapping[str, list[float]], without_mpi: str | None
    ) -> None:
        """Store the seconds of a call in a cell, for each contestant."""
        reason = without_mpi or "not measured"
        self.times[cell] = {
            contestant: Summary.of_seconds(samples[contestant]) if contestant in samples else reason
            for contestant in CONTESTANTS
        }
        if EMPTY in samples:
            self.empty[cell.part, cell.case.operation] = Summary.of_seconds(samples[EMPTY])

    def ratio(self, cell: Cell, other: str) -> float | None:
        """Return the ratio of the median time of `other` to slackline's; None if one is missing."""
        theirs, ours = self.times[cell][other], self.times[cell]["slackline"]
        if isinstance(theirs, str) or isinstance(ours, str):
            return None
        return theirs.median_us / ours.median_us

    def ratios(self, other: str, part: Part | None = None) -> dict[Cell, float]:
        """Return the ratio for each cell, or each cell of one part, that was measured for both."""
        found = {cell: self.ratio(cell, other) for cell in self.times}
        return {
            cell: ratio
            for cell, ratio in found.items()
            if ratio is not None and part in (None, cell.part)
        }

    def rows(self) -> list[Row]:
        """Return a row for each cell and contestant, and for each operation's empty call."""
        rows = [
            _row(cell, contestant, time)
            for cell, times in self.times.items()
            for contestant, time in times.items()
        ]
        empty = [
            _row(cell, EMPTY, self.empty[cell.part, cell.case.operation])
            for cell in self.times
            if cell.case.has_empty_calls
        ]
        return rows + empty

    def targets(self) -> list[Target]:
        """Return the targets: one for gloo in each part, and one for OpenMPI over all cells."""
        parts = dict.fromkeys(cell.part for cell in self.times)
        targets = [
            Target(
                name=f"{part.name}: gloo over slackline, the least of the cells",
                target=GLOO_OVER_OURS,
                measured=_least(self.ratios("gloo", part)),
            )
            for part in parts
        ]
        found = self.ratios("openmpi")
        ahead = sum(ratio > 1 for ratio in found.values()) / len(found) if found else None
        worst = 1 / min(found.values()) if found else None
        targets.append(
            Target(
                name="share of the cells ahead of OpenMPI",
                target=AHEAD_OF_OPENMPI,
                measured=None if ahead is None else round(ahead, 3),
            )
        )
        targets.append(
            Target(
                name="slackline over OpenMPI, the largest of the cells",
                target=OURS_OVER_OPENMPI,
                measured=None if worst is None else round(worst, 3),
                bound="at most",
            )
        )
        crowded = Cell(part=CROWDED, case=Case(operation="all_reduce", nbytes=CROWDED_SIZES[-1]))
        targets.append(
            Target(
                name=f"{crowded.name}: OpenMPI over slackline",
                target=CROWDED_OPENMPI_OVER_OURS,
                measured=_least({crowded: found[crowded]} if crowded in found else {}),
            )
        )
        return targets

    def tables(self) -> list[Table]:
        """Return a table for each part: medians (10th-90th percentile) and ratios."""
        tables = []
        for part in dict.fromkeys(cell.part for cell in self.times):
            table = Table(
                *("operation", *CONTESTANTS, "gloo / slackline", "openmpi / slackline"),
                "empty call",
                title=f"{part.ranks} ranks over {part.rails}, time a call",
            )
            for cell, times in self.times.items():
                if cell.part != part:
                    continue
                ratios = (self.ratio(cell, other) for other in ("gloo", "openmpi"))
                table.add_row(
                    cell.case.name,
                    *("skipped" if isinstance(t, str) else str(t) for t in times.values()),
                    *("-" if ratio is None else f"{ratio:.2f}x" for ratio in ratios),
                    str(self.empty[part, cell.case.operation]),
                )
            tables.append(table)
        return tables

    def notes(self) -> list[str]:
        """Return the cells that miss a target, and the reasons why contestants were skipped."""
        behind = [
            f"behind {other} in {cell.name}: {ratio:.2f}x"
            for other in ("gloo", "openmpi")
            for cell, ratio in self.ratios(other).items()
            if ratio <= 1
        ]
        behind += [
            f"of {count} cells behind OpenMPI over {part.name}, {sum(bounded)} are ones in which "
            "an empty call through torch.distributed alone takes longer than OpenMPI's call"
            for part, bounded in self._bounded().items()
            if (count := len(bounded))
        ]
        skipped = {
            f"{contestant} skipped: {time}"
            for times in self.times.values()
            for contestant, time in times.items()
            if isinstance(time, str)
        }
        return [*behind, *sorted(skipped)]

    def _bounded(self) -> dict[Part, list[bool]]:
        """Return for each cell behind OpenMPI whether an empty call takes longer than OpenMPI."""
        bounded: dict[Part, list[bool]] = {}
        for cell, ratio in self.ratios("openmpi").items():
            theirs = self.times[cell]["openmpi"]
            if ratio <= 1 and isinstance(theirs, Summary):
                empty = self.empty[cell.part, cell.case.operation]
                bounded.setdefault(cell.part, []).append(empty.median_us >= theirs.median_us)
        return bounded


def _least(ratios: Mapping[Cell, float]) -> float | None:
    return round(min(ratios.values()), 3) if ratios else None


def _row(cell: Cell, contestant: str, time: Summary | str) -> Row:
    labels: dict[str, Scalar] = {
        "operation": cell.case.operation,
        "ranks": cell.part.ranks,
        "rails": cell.part.rails,
        "bytes": cell.case.nbytes,
        "contestant": contestant,
    }
    if isinstance(time, str):
        return Row(labels=labels, skipped=time)
    return Row(labels=labels, values={**time.values(), "calls_a_round": cell.case.calls})
