"""Measure how often the trial of slackline.overlap chooses a variant of a step that is nearly best.

Every variant of a step is measured in turns during real training. Trials are then replayed on the
recorded step times, from places that are drawn at random.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _harness.machine import describe_machine
from _harness.options import parse
from _harness.ranks import Conductor, Ranks
from _harness.report import Report, Row, Target
from _harness.summary import percentile
from cases import CASES, QUICK_CASES, QUICK_ROUNDS, REPLAYS, ROUNDS, WITHIN, Case
from rank import start_rank
from replay import Series, regrets, series_of
from rich.table import Table

SEED = 0
PIECE_S = 20.0
"""The seconds of training between two answers of a rank."""


def record(ranks: Conductor, case: Case, rounds: int) -> Series:
    """Train a model, and return the step times of all variants."""
    ranks.ask("prepare", case.model, rounds)
    while not ranks.ask("train", PIECE_S)[0]:
        pass
    return series_of(case.name, ranks.ask("results")[0])


def row_of(case: Case, series: Series) -> Row:
    """Return the row of a model: its best variant, and every step time in ns by variant."""
    times = series.typical_ns()
    best = times.index(min(times))
    return Row(
        labels={"model": case.model, "ranks": case.ranks},
        values={
            "best": str(series.variants[best]),
            "best_ms": min(times) / 1e6,
            "worst_ms": max(times) / 1e6,
            "rounds": len(series.rounds),
        },
        series={
            str(variant): [time for each in series.rounds for time in each[k]]
            for k, variant in enumerate(series.variants)
        },
    )


def main() -> None:
    options = parse(
        "the choice of a variant by trial, beside the best fixed variant", takes_measured=True
    )
    machine = describe_machine()
    cases = QUICK_CASES if options.quick else CASES
    recordings, rows = [], []
    if options.measured:
        for path in options.measured:
            for each in json.loads(path.read_text())["rows"]:
                case = Case(model=each["model"], ranks=each["ranks"])
                recordings.append(Series.of_row(case.name, each))
                rows.append(row_of(case, recordings[-1]))
    for size in sorted({case.ranks for case in cases}) if not options.measured else ():
        with Ranks(start_rank, size, environment={"OMP_NUM_THREADS": "1"}) as ranks:
            for case in (each for each in cases if each.ranks == size):
                rounds = QUICK_ROUNDS if options.quick else ROUNDS
                recordings.append(record(ranks, case, rounds))
                rows.append(row_of(case, recordings[-1]))
            ranks.ask("close")
    found = regrets(recordings, REPLAYS, SEED)
    share = sum(each <= WITHIN for each in found) / len(found)
    targets = [
        Target(name="trials within 3 % of the best variant", target=0.95, measured=share),
        Target(
            name="mean step over that of the best variant",
            target=1.01,
            measured=sum(found) / len(found),
            bound="at most",
        ),
    ]
    table = Table("model", "ranks", "best variant", "its step ms", "the slowest's ms")
    for row in rows:
        values = row.values
        table.add_row(
            str(row.labels["model"]),
            str(row.labels["ranks"]),
            str(values["best"]),
            f"{values['best_ms']:.1f}",
            f"{values['worst_ms']:.1f}",
        )
    worst = percentile(found, 95)
    note = f"of {len(found)} replayed trials, one in twenty chose {worst:.3f} of the best or more"
    Report(machine=machine, rows=rows, targets=targets).print([table], options, notes=[note])


if __name__ == "__main__":
    main()
