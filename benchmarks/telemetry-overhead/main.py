"""Measure the time that telemetry adds to a training step.

Two pairs of ranks train the same model over TCP, one pair with telemetry and one without, and take
turns. The overhead is the median over the rounds of the ratio of both turns.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _harness.machine import describe_machine
from _harness.options import parse
from _harness.ranks import Conductor, Ranks
from _harness.report import Report, Row, Target
from _harness.rounds import in_turns
from _harness.summary import median_interval, percentile
from cases import CELLS, FULL, QUICK, RANKS, Cell, Lengths
from performer import Performer
from rich.table import Table

from slackline.history import read_directory
from slackline.records import Operations, StepSummary

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

    def percent(self, times: dict[str, list[float]]) -> float:
        """Return the median over the rounds of the overhead, in percent of a step."""
        return percentile(percents(times), 50)


def percents(times: Mapping[str, Sequence[float]]) -> list[float]:
    """Return the overhead of each round, in percent of a step."""
    return [100 * (on / off - 1) for on, off in zip(times[ON], times[OFF], strict=True)]


def live(cells: Sequence[tuple[Cell, Found]], how: Lengths) -> None:
    """Start both pairs of ranks, measure all models, and count the records that were written."""
    with tempfile.TemporaryDirectory(prefix="slackline-telemetry-") as folder:
        written = {**COMMON, "SLACKLINE_TELEMETRY": folder}
        spans_ns = []
        with (
            Ranks(Performer, RANKS, environment=COMMON) as off,
            Ranks(Performer, RANKS, environment=written) as on,
        ):
            who: dict[str, Conductor] = {OFF: off, ON: on}
            for cell, found in cells:
                began_ns = time.monotonic_ns()
                measure(cell, found, who, how)
                spans_ns.append((began_ns, time.monotonic_ns()))
            for ranks in who.values():
                ranks.ask("close")
        records = list(read_directory(Path(folder)))
        operations = [
            operation.posted_ns
            for record in records
            if isinstance(record, Operations)
            for operation in record.rows
        ]
        steps = [record for record in records if isinstance(record, StepSummary)]
    for (cell, found), (began_ns, ended_ns) in zip(cells, spans_ns, strict=True):
        # Ranks of one host share the main process's monotonic clock.
        found.operations += sum(began_ns <= posted_ns < ended_ns for posted_ns in operations)
        found.steps += sum(step.parameters == 2 * cell.layers for step in steps)


def measure(cell: Cell, found: Found, who: Mapping[str, Conductor], how: Lengths) -> None:
    """Measure rounds of one model for the given time, and check that the results are equal."""
    for ranks in who.values():
        ranks.ask("prepare", cell, how.warm_up)
    until_s, number = time.monotonic() + how.seconds, 0
    while number < how.least_rounds or time.monotonic() < until_s:
        for name in in_turns((OFF, ON), number):
            times = who[name].ask("turn", how.steps)
            found.elapsed[name].append(max(elapsed for elapsed, _ in times))
            found.processor[name].append(sum(cpu for _, cpu in times))
        number += 1
    digests = {digest for ranks in who.values() for digest in ranks.ask("digest")}
    if len(digests) > 1:
        raise ArithmeticError(f"{cell.name}: the parameters differ: {sorted(digests)}")


def rows_of(measured: Sequence[tuple[Cell, Found]]) -> list[Row]:
    """Return a row for each cell."""
    rows = []
    for cell, found in measured:
        low, high = median_interval(percents(found.elapsed))
        values = {
            "step_off_us": round(statistics.median(found.elapsed[OFF]) * 1e6, 2),
            "step_on_us": round(statistics.median(found.elapsed[ON]) * 1e6, 2),
            "overhead_percent": round(found.percent(found.elapsed), 3),
            "overhead_low_percent": round(low, 3),
            "overhead_high_percent": round(high, 3),
            "processor_percent": round(found.percent(found.processor), 3),
            "operations_per_step": round(found.operations / max(1, found.steps), 2),
            "rounds": len(found.elapsed[ON]),
        }
        rows.append(Row(labels={"cell": cell.name, "ranks": RANKS}, values=values))
    return rows


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
        low, high = values["overhead_low_percent"], values["overhead_high_percent"]
        table.add_row(
            str(row.labels["cell"]),
            f"{values['operations_per_step']:g}",
            f"{values['step_off_us'] / 1e3:.3f}",
            f"{values['step_on_us'] / 1e3:.3f}",
            f"{values['overhead_percent']:+.2f} ({low:+.2f} to {high:+.2f})",
            f"{values['processor_percent']:+.2f}",
        )
    return table


def main() -> None:
    options = parse("the time that telemetry adds to a training step")
    machine = describe_machine()
    how = QUICK if options.quick else FULL
    measured = [(cell, Found()) for cell in CELLS]
    for _ in range(how.lives):
        live(measured, how)
    rows = rows_of(measured)
    report = Report(machine=machine, rows=rows, targets=targets_of(measured))
    report.print([table_of(rows)], options)


if __name__ == "__main__":
    main()
