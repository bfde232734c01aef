"""Measure the gain of the settings that `slackline tune` finds for three jobs.

Each job is tuned by the command itself. The gain is that of its fresh trials: the step with the
defaults divided by the step with the tuned settings, the median over three pairs. Settings without
a confirmed gain are not used, and the gain is then 1.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _harness.machine import describe_machine
from _harness.options import parse
from _harness.report import Report, Row, Target
from cases import CASES, FULL, QUICK, Case, Lengths
from rich.table import Table

JOBS = Path(__file__).parent / "jobs"
COMMAND = "import sys; from slackline.cli import main; sys.exit(main())"
LEAST = 1.0


def tuned(case: Case, lengths: Lengths) -> dict[str, Any]:
    """Tune a job and return the command's result; raise RuntimeError with its errors."""
    with tempfile.TemporaryDirectory(prefix="slackline-tune-gain-") as folder:
        ended = subprocess.run(
            [
                *(sys.executable, "-c", COMMAND, "tune", "--json", *case.network),
                *("--trials", str(lengths.trials), "--steps", str(lengths.steps)),
                *("--budget", lengths.budget, "--output", f"{folder}/tuned.toml"),
                str(JOBS / case.script),
            ],
            env={**os.environ, **case.environment, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if ended.returncode:
        raise RuntimeError(f"{case.name}: slackline tune failed: {ended.stderr}")
    result: dict[str, Any] = json.loads(ended.stdout)
    return result


def row_of(case: Case, result: dict[str, Any]) -> Row:
    """Return the row of a tuned job."""
    usual = [each["step_ns"] / 1e6 for each in result["trials"] if not each["settings"]]
    return Row(
        labels={"job": case.name},
        values={
            "settings": " ".join(f"{k}={v}" for k, v in result["settings"].items()) or "defaults",
            "gain": round(used_gain(result), 4),
            "tried": " ".join(f"{k}={v}" for k, v in result["tried"].items()) or "none",
            "tried_gain": round(result["gain"], 4),
            "tried_lowest": round(result["lowest"], 4),
            "tried_highest": round(result["highest"], 4),
            "defaults_ms": round(min(usual), 3) if usual else 0.0,
            "trials": len(result["trials"]),
        },
    )


def used_gain(result: dict[str, Any]) -> float:
    """Return the gain of the settings that the file holds."""
    return float(result["gain"]) if result["confirmed"] else 1.0


def table_of(rows: list[Row]) -> Table:
    """Return the rows as a table."""
    table = Table("job", "settings", "gain", "tried", "gain of the tried", "defaults ms", "trials")
    for row in rows:
        if row.skipped is not None:
            table.add_row(str(row.labels["job"]), row.skipped)
            continue
        values = row.values
        spread = f"{values['tried_gain']} ({values['tried_lowest']} to {values['tried_highest']})"
        table.add_row(
            str(row.labels["job"]),
            str(values["settings"]),
            str(values["gain"]),
            str(values["tried"]),
            spread,
            str(values["defaults_ms"]),
            str(values["trials"]),
        )
    return table


def main() -> None:
    options = parse("the gain of tuned settings")
    machine = describe_machine()
    lengths = QUICK if options.quick else FULL
    rows, targets = [], []
    for case in CASES:
        measured = None
        if options.quick and not case.quick:
            rows.append(Row(labels={"job": case.name}, skipped="left out by --quick"))
        elif case.lab and os.geteuid():
            rows.append(Row(labels={"job": case.name}, skipped="a lab needs root"))
        else:
            print(f"tuning: {case.name}", file=sys.stderr)
            result = tuned(case, lengths)
            rows.append(row_of(case, result))
            measured = used_gain(result)
        targets.append(
            Target(
                name=f"gain of the written settings, {case.name}", target=LEAST, measured=measured
            )
        )
    report = Report(machine=machine, rows=rows, targets=targets)
    report.print([table_of(rows)], options)


if __name__ == "__main__":
    main()
