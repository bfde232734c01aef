"""Measure the difference between simulated and measured times of all_reduces on four hosts of a
lab.

The simulator gets a rate and a latency, which are derived from two all_reduces on two hosts; all
other figures follow from the plans and the sizes.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _harness.machine import describe_machine
from _harness.options import parse
from _harness.ranks import LabRanks
from _harness.report import Report, Row, Target
from _harness.summary import Summary
from cases import CELLS, LONG, QUICK_CELLS, RATE_BPS, SHORT, Cell
from performer import Performer
from predictions import Calibration, calibrate, simulated_ps
from rich.table import Table

from slackline.errors import UsageError
from slackline.lab import Lab, LabOptions

CALLS, QUICK_CALLS = 20, 5
MEDIAN_PERCENT, WORST_PERCENT = 5.0, 15.0


def measure(lab: Lab, cells: Iterable[Cell], calls: int) -> dict[Cell, list[float]]:
    """Return the seconds of each call, from the last rank's start to the last rank's end."""
    found: dict[Cell, list[float]] = {}
    for (hosts, plan), group in groupby(cells, key=lambda cell: (cell.hosts, cell.plan)):
        environment = {
            "SLACKLINE_PLAN": plan,
            "SLACKLINE_ORDER": "any",
            "SLACKLINE_RAILS": "tcp",
            "SLACKLINE_INTERFACE": "eth0",
            "OMP_NUM_THREADS": "1",
        }
        with LabRanks(Performer, lab, environment=environment, hosts=hosts) as ranks:
            for cell in group:
                spans = ranks.ask("all_reduces", cell.nbytes, calls)
                found[cell] = [
                    (max(end for _, end in call) - max(start for start, _ in call)) / 1e9
                    for call in zip(*spans, strict=True)
                ]
            ranks.ask("close")
    return found


def rows_of(
    measured: Mapping[Cell, Sequence[float]], calibration: Calibration | None, reason: str
) -> list[Row]:
    """Return a row for each cell: the measured and the simulated time, and their difference."""
    rows = []
    for cell in (SHORT, LONG, *CELLS):
        labels = {"plan": cell.plan, "hosts": cell.hosts, "bytes": cell.nbytes}
        if calibration is None or cell not in measured:
            rows.append(Row(labels=labels, skipped=reason))
            continue
        summary = Summary.of_seconds(measured[cell])
        simulated_us = simulated_ps(cell, calibration) / 1e6
        values = {
            **summary.values(),
            "simulated_us": round(simulated_us, 2),
            "error_percent": round(100 * (simulated_us / summary.median_us - 1), 2),
        }
        rows.append(Row(labels=labels, values=values))
    return rows


def targets_of(rows: Sequence[Row]) -> list[Target]:
    """Return the targets; the cells of the calibration do not count."""
    errors = [abs(float(row.values["error_percent"])) for row in rows[2:] if row.values]
    return [
        Target(
            name="simulated against measured, median, %",
            target=MEDIAN_PERCENT,
            measured=statistics.median(errors) if errors else None,
            bound="at most",
        ),
        Target(
            name="simulated against measured, worst, %",
            target=WORST_PERCENT,
            measured=max(errors) if errors else None,
            bound="at most",
        ),
    ]


def table_of(rows: Sequence[Row]) -> Table:
    """Return the rows as a table."""
    table = Table("plan", "hosts", "KiB", "measured ms", "simulated ms", "error %")
    for row in rows:
        labels = (str(row.labels["plan"]), str(row.labels["hosts"]))
        size = f"{int(row.labels['bytes']) / 1024:g}"
        if row.skipped is not None:
            table.add_row(*labels, size, row.skipped)
            continue
        measured, simulated = (float(row.values[k]) for k in ("median_us", "simulated_us"))
        error = f"{float(row.values['error_percent']):+.1f}"
        table.add_row(*labels, size, f"{measured / 1e3:.3f}", f"{simulated / 1e3:.3f}", error)
    return table


def main() -> None:
    options = parse("how far simulated all_reduces are from measured ones")
    machine = describe_machine()
    measured: dict[Cell, list[float]] = {}
    calibration, reason, notes = None, "left out by --quick", []
    calls = QUICK_CALLS if options.quick else CALLS
    try:
        with Lab(LabOptions(hosts=4, rate=RATE_BPS)) as lab:
            measured = measure(lab, (SHORT, LONG), calls)
            short, long = (statistics.median(measured[cell]) for cell in (SHORT, LONG))
            calibration = calibrate(round(short * 1e12), round(long * 1e12))
            measured |= measure(lab, QUICK_CELLS if options.quick else CELLS, calls)
        notes = [
            f"calibration: {calibration.rate_bps / 1e6:.2f} Mbit/s, "
            f"{calibration.latency_ps / 1e6:.1f} us a cable"
        ]
    except UsageError as error:
        reason = str(error)
    rows = rows_of(measured, calibration, reason)
    report = Report(machine=machine, rows=rows, targets=targets_of(rows))
    report.print([table_of(rows)], options, notes)


if __name__ == "__main__":
    main()
