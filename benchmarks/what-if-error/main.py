"""Measure the difference between predicted and measured step times of changed jobs in a lab.

The predictions are made from the telemetry of one run, before any changed job has run.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _harness.machine import describe_machine
from _harness.options import parse
from _harness.ranks import LabRanks
from _harness.report import Report, Row, Target
from cases import BASE, CASES, QUICK, Case, Setup
from performer import Performer
from rich.table import Table

from slackline import predict
from slackline.errors import UsageError
from slackline.lab import Lab, LabOptions, require

STEPS, QUICK_STEPS = 40, 15
MOST_PERCENT = 5.0
"""The error within which a prediction counts as right."""
WITHIN_SHARE, BELOW_P95_SHARE = 90.0, 85.0
"""The least percentages of predictions within that error, and of measured medians that do not
exceed the predicted P95."""
AS_MEASURED = "as measured"


def measure(setup: Setup, steps: int) -> predict.Run:
    """Return a job's run, read from its telemetry."""
    environment = {
        "SLACKLINE_PLAN": setup.plan,
        "SLACKLINE_ORDER": "any",
        "SLACKLINE_RAILS": "tcp",
        "SLACKLINE_INTERFACE": ",".join(f"eth{nic}" for nic in range(setup.nics)),
        "OMP_NUM_THREADS": "1",
    }
    options = LabOptions(hosts=setup.hosts, nics=setup.nics, rate=setup.rate_bps)
    with tempfile.TemporaryDirectory(prefix="slackline-what-if-") as folder:
        directory = Path(folder, "telemetry")
        environment["SLACKLINE_TELEMETRY"] = str(directory)
        with Lab(options) as lab, LabRanks(Performer, lab, environment=environment) as ranks:
            ranks.ask("train", setup, steps, directory)
            ranks.ask("close")
        job = predict.Job(
            folder=folder,
            script="performer.py",
            lab=True,
            ranks=setup.hosts,
            nics=setup.nics,
            rate_bps=setup.rate_bps,
        )
        predict.write_job(Path(folder), job)
        return predict.load(Path(folder))


def row_of(
    name: str, predicted: predict.Prediction | None, measured: predict.Run | None, reason: str
) -> Row:
    """Return a row with the predicted and the measured median, or the reason without them."""
    if predicted is None or measured is None:
        return Row(labels={"change": name}, skipped=reason)
    median_ns = statistics.median(measured.wall_ns)
    return Row(
        labels={"change": name},
        values={
            "p50_ms": round(predicted.p50_ns / 1e6, 3),
            "p95_ms": round(predicted.p95_ns / 1e6, 3),
            "measured_ms": round(median_ns / 1e6, 3),
            "error_percent": round(100 * (predicted.p50_ns / median_ns - 1), 2),
            "below_p95": int(median_ns <= predicted.p95_ns),
        },
    )


def targets_of(rows: Sequence[Row]) -> list[Target]:
    """Return the targets; the row of the first run does not count."""
    found = [row.values for row in rows[1:] if row.values]
    errors = [abs(float(values["error_percent"])) for values in found]
    right = [error <= MOST_PERCENT for error in errors]
    below = [bool(values["below_p95"]) for values in found]
    return [
        Target(
            name=f"predictions within {MOST_PERCENT:g} % of the measured median, %",
            target=WITHIN_SHARE,
            measured=100 * sum(right) / len(right) if right else None,
        ),
        Target(
            name="measured medians at or below the predicted P95, %",
            target=BELOW_P95_SHARE,
            measured=100 * sum(below) / len(below) if below else None,
        ),
    ]


def table_of(rows: Sequence[Row]) -> Table:
    """Return the rows as a table."""
    table = Table("change", "P50 ms", "P95 ms", "measured ms", "error %", "below P95")
    for row in rows:
        name = str(row.labels["change"])
        if row.skipped is not None:
            table.add_row(name, row.skipped)
            continue
        times = (f"{float(row.values[key]):.1f}" for key in ("p50_ms", "p95_ms", "measured_ms"))
        error = f"{float(row.values['error_percent']):+.1f}"
        table.add_row(name, *times, error, "yes" if row.values["below_p95"] else "NO")
    return table


def main() -> None:
    options = parse("how far predicted step times are from measured ones")
    machine = describe_machine()
    steps = QUICK_STEPS if options.quick else STEPS
    asked: Sequence[Case] = [case for case in CASES if not options.quick or case.change in QUICK]
    predictions: dict[str, predict.Prediction] = {}
    measured: dict[str, predict.Run] = {}
    reason, notes = "left out by --quick", []
    try:
        require()
    except UsageError as error:
        asked, reason = (), str(error)
    if asked:
        base = measured[AS_MEASURED] = measure(BASE, steps)
        predictions[AS_MEASURED] = predict.predict(base)
        for case in asked:
            changes = predict.parse_changes(case.change)
            predictions[case.change] = predict.predict(base, changes)
        notes = [
            f"calibration: {base.link.rate_bps / 1e6:.2f} Mbit/s, "
            f"{base.link.one_way_ns / 1e3:.1f} us a message"
        ]
        for case in asked:
            measured[case.change] = measure(case.setup, steps)
    names = [AS_MEASURED, *(case.change for case in CASES)]
    rows = [row_of(name, predictions.get(name), measured.get(name), reason) for name in names]
    report = Report(machine=machine, rows=rows, targets=targets_of(rows))
    report.print([table_of(rows)], options, notes)


if __name__ == "__main__":
    main()
