"""Measure the simulator: events per second, runs of 100,000 ranks, and the error of flows."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _harness.machine import describe_machine
from _harness.options import parse
from _harness.report import Report, Row, Target
from rich.table import Table
from scenes import SPEEDS, Shape, Speed, flows_and_frames, shapes, smaller

ROOT = Path(__file__).resolve().parents[2]
SLACKLINE = "import sys; from slackline.cli import main; sys.exit(main())"
EVENTS_PER_S = 1e6
SECONDS = 60.0
RSS_GIB = 8.0
MEDIAN_PERCENT, WORST_PERCENT = 2.0, 10.0
EXPERIMENTS = tuple(f"hundred-thousand{kind}.toml" for kind in ("", "-pipeline", "-uneven"))


def speed(case: Speed, rounds: int) -> Row:
    """Measure the events a second of a case; the fastest of some rounds counts."""
    best, events = float("inf"), 0
    for _ in range(rounds):
        start = time.perf_counter()
        events = case.events()
        best = min(best, time.perf_counter() - start)
    return Row(
        labels={"case": case.name},
        values={"events": events, "seconds": round(best, 3), "events_per_s": round(events / best)},
    )


def scale(name: str, *, quick: bool) -> Row:
    """Simulate an experiment in a process of its own, a tenth of it with `quick`."""
    text = (ROOT / "examples" / "experiments" / name).read_text()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(smaller(text) if quick else text)
        out = Path(folder) / "figures.json"
        start = time.perf_counter()
        child = os.posix_spawn(
            sys.executable,
            [sys.executable, "-c", SLACKLINE, "simulate", str(path), "--json"],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_OPEN, 1, str(out), os.O_CREAT | os.O_WRONLY, 0o600)],
        )
        _, status, usage = os.wait4(child, 0)
        seconds = time.perf_counter() - start
    if status:
        raise SystemExit(f"{name} ended with status {os.waitstatus_to_exitcode(status)}")
    return Row(
        labels={"experiment": name, "ranks": 10_000 if quick else 100_000},
        values={"seconds": round(seconds, 2), "peak_rss_gib": round(usage.ru_maxrss / 2**20, 2)},
    )


def error(shape: Shape) -> Row:
    """Compare flows with frames at a size at which both can be simulated."""
    flows_ps, frames_ps = flows_and_frames(shape)
    return Row(
        labels={"hosts": shape.hosts, "ranks_per_host": shape.per_host, "drawn": shape.seed},
        values={
            "frames_us": round(frames_ps / 1e6, 2),
            "flows_us": round(flows_ps / 1e6, 2),
            "error_percent": round(100 * (flows_ps / frames_ps - 1), 2),
        },
    )


def targets_of(speeds: list[Row], scales: list[Row], errors: list[Row]) -> list[Target]:
    """Return the targets; times for 100,000 ranks are not judged in a run with a tenth of them."""
    found = [
        Target(
            name=f"{row.labels['case']}: events/s",
            target=EVENTS_PER_S,
            measured=float(row.values["events_per_s"]),
        )
        for row in speeds
    ]
    for row in scales:
        whole = row.labels["ranks"] == 100_000
        for name, key, bound in (
            ("seconds", "seconds", SECONDS),
            ("peak RSS, GiB", "peak_rss_gib", RSS_GIB),
        ):
            found.append(
                Target(
                    name=f"{row.labels['experiment']}, 100,000 ranks: {name}",
                    target=bound,
                    measured=float(row.values[key]) if whole else None,
                    bound="at most",
                )
            )
    sizes = [abs(float(row.values["error_percent"])) for row in errors]
    for name, bound, measured in (
        ("median", MEDIAN_PERCENT, statistics.median(sizes)),
        ("worst", WORST_PERCENT, max(sizes)),
    ):
        found.append(
            Target(
                name=f"flows against frames, {name}, %",
                target=bound,
                measured=measured,
                bound="at most",
            )
        )
    return found


def table(title: str, rows: list[Row]) -> Table:
    """Return rows of one kind as a table."""
    found = Table(*(key.replace("_", " ") for key in rows[0].as_json()), title=title)
    for row in rows:
        found.add_row(*(str(value) for value in row.as_json().values()))
    return found


def main() -> None:
    """Make all measurements and print the report."""
    options = parse(__doc__ or "")
    machine = describe_machine()
    speeds = [speed(case, 1 if options.quick else 5) for case in SPEEDS]
    scales = [scale(name, quick=options.quick) for name in EXPERIMENTS]
    errors = [error(shape) for shape in shapes(quick=options.quick)]
    report = Report(
        machine=machine,
        rows=[*speeds, *scales, *errors],
        targets=targets_of(speeds, scales, errors),
    )
    tables = [
        table("frame by frame", speeds),
        table("many ranks", scales),
        table("flows against frames", errors),
    ]
    report.print(tables, options)


if __name__ == "__main__":
    main()
