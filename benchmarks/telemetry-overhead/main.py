"""Measure the time that telemetry adds to a training step.

Two pairs of ranks train the same model over TCP, one pair with telemetry and one without, and take
turns. The overhead is the median over the rounds of the ratio of both turns.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _harness.machine import describe_machine
from _harness.options import parse
from _harness.ranks import Conductor, Ranks
from _harness.report import Report, Row, Target
from _harness.rounds import in_turns
from _harness.summary import percentile
from cases import CELLS, FULL, QUICK, RANKS, Cell, Lengths
from performer import Performer
from rich.table import Table

from slackline.telemetry import Operations, StepSummary, read_directory

MOST_PERCENT = 0.5
OFF, ON = "off", "on"
COMMON = {"SLACKLINE_RAILS": "tcp", "OMP_NUM_THREADS": "1"}


@dataclass
class Found:
    """The measurements of one cell, by contestant: seconds of a step in each round."""

    elapsed: dict[str, list[float]] = field(default_factory=lambda: {OFF: [], ON: []})
    processor: dict[str, list[float]] = field(default_factory=lambda: {OFF: [], ON: []})
    operations: int = 0
    steps: int = 0

    def percent(self, times: dict[str, list[float]], share: float = 50) -> float:
        """Return a percentile of the overhead over the rounds, in percent of a step."""
        ratios = [100 * (on / off - 1) for on, off in zip(times[ON], times[OFF], strict=True)]
        return percentile(ratios, share)


def live(cell: Cell, how: Lengths, found: Found) -> None:
    """Start both pairs of ranks, measure all rounds, and count the records that were written."""
    with tempfile.TemporaryDirectory(prefix="slackline-telemetry-") as folder:
        written = {**COMMON, "SLACKLINE_TELEMETRY": folder}
        with (
            Ranks(Performer, RANKS, environment=COMMON) as off,
            Ranks(Performer, RANKS, environment=written) as on,
        ):
            who: dict[str, Conductor] = {OFF: off, ON: on}
            for ranks in who.values():
                ranks.ask("prepare", cell, how.warm_up)
            for number in range(how.rounds):
                for name in in_turns((OFF, ON), number):
                    times = who[name].ask("turn", how.steps)
                    found.elapsed[name].append(max(elapsed for elapsed, _ in times))
                    found.processor[name].append(sum(cpu for _, cpu in times))
            digests = {digest for ranks in who.values() for digest in ranks.ask("digest")}
            if len(digests) > 1:
                raise ArithmeticError(f"{cell.name}: the parameters differ: {sorted(digests)}")
            for ranks in who.values():
                ranks.ask("close")
        for record in read_directory(Path(folder)):
            found.steps += isinstance(record, StepSummary)
            if isinstance(record, Operations):
                found.operations += sum(1 for _ in record.each())


def rows_of(measured: Sequence[tuple[Cell, Found]]) -> list[Row]:
    """Return a row for each cell."""
    return [
        Row(
            labels={"cell": cell.name, "ranks": RANKS},
            values={
                "step_off_us": round(statistics.median(found.elapsed[OFF]) * 1e6, 2),
                "step_on_us": round(statistics.median(found.elapsed[ON]) * 1e6, 2),
                "overhead_percent": round(found.percent(found.elapsed), 3),
                "overhead_p10_percent": round(found.percent(found.elapsed, 10), 3),
                "overhead_p90_percent": round(found.percent(found.elapsed, 90), 3),
                "processor_percent": round(found.percent(found.processor), 3),
                "operations_per_step": round(found.operations / max(1, found.steps), 2),
                "rounds": len(found.elapsed[ON]),
            },
        )
        for cell, found in measured
    ]


def targets_of(measured: Sequence[tuple[Cell, Found]]) -> list[Target]:
    """Return the target of each cell."""
    return [
        Target(
            name=f"time that telemetry adds to a step, {cell.name}, %",
            target=MOST_PERCENT,
            measured=found.percent(found.elapsed),
            bound="at most",
        )
        for cell, found in measured
    ]


def table_of(rows: Sequence[Row]) -> Table:
    """Return the rows as a table."""
    table = Table("model", "operations", "step off ms", "on ms", "added %", "processor %")
    for row in rows:
        values = {name: float(value) for name, value in row.values.items()}
        spread = f"({values['overhead_p10_percent']:+.1f} to {values['overhead_p90_percent']:+.1f})"
        table.add_row(
            str(row.labels["cell"]),
            f"{values['operations_per_step']:g}",
            f"{values['step_off_us'] / 1e3:.3f}",
            f"{values['step_on_us'] / 1e3:.3f}",
            f"{values['overhead_percent']:+.2f} {spread}",
            f"{values['processor_percent']:+.2f}",
        )
    return table


def main() -> None:
    options = parse("the time that telemetry adds to a training step")
    machine = describe_machine()
    how = QUICK if options.quick else FULL
    measured = []
    for cell in CELLS:
        found = Found()
        for _ in range(how.lives):
            live(cell, how, found)
        measured.append((cell, found))
    rows = rows_of(measured)
    report = Report(machine=machine, rows=rows, targets=targets_of(measured))
    report.print([table_of(rows)], options)


if __name__ == "__main__":
    main()
