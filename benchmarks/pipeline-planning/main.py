"""Measure pipeline plans: against proven optima, against other schedules, and the time to plan."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _harness.machine import describe_machine
from _harness.options import parse
from _harness.report import Report, Row, Target
from pipeline_optimum import optimum_ps
from pipeline_scenarios import draw
from published_gaps import published
from rich.table import Table

from slackline.plan.pipeline import SCHEDULES, Options, Scenario, auto, check, replay

SMALL = ((2, 4), (4, 8), 80, 24)
"""The ranges of stages and of microbatches; the number of scenarios without and with --quick."""
MIDDLE = ((2, 8), (4, 16), 80, 8)
LARGE = ((2, 16), (4, 64), 60, 6)
SIZES = ((8, 24, 0.3), (16, 256, 2.0), (64, 1024, 30.0))
"""The stages, the microbatches, and the target for the time to plan, in seconds."""
PROOF_SECONDS = 20.0
QUICK_PROOF_SECONDS = 2.0
MEAN_PERCENT, WORST_PERCENT = 0.15, 3.0
FIRST_SEED = 70_000
"""The first seed. Earlier seeds served to choose the settings of the search, so its quality is
judged by scenarios that the search has not been fitted to."""


def against_optimum(name: str, quick: bool) -> tuple[Row, list[Target]]:
    """Measure how much longer plans of the schedule `auto` take than optima that were proven."""
    stages, counts, many, few = {"small": SMALL, "middle": MIDDLE}[name]
    limit = QUICK_PROOF_SECONDS if quick else PROOF_SECONDS
    gaps, plain, seconds = [], [], []
    for seed in range(FIRST_SEED, FIRST_SEED + (few if quick else many)):
        scenario = draw(seed, stages, counts)
        start = time.perf_counter()
        found = auto(scenario)
        seconds.append(time.perf_counter() - start)
        proven: int | None = found.makespan_ps
        if found.makespan_ps > found.lower_bound_ps:
            proven = optimum_ps(scenario, found.makespan_ps, limit)
        if proven is not None:
            ready = SCHEDULES["ready"].make(scenario, Options())
            gaps.append(100 * (found.makespan_ps / proven - 1))
            plain.append(100 * (replay(ready, scenario).makespan_ps / proven - 1))
    mean, worst = sum(gaps) / len(gaps), max(gaps)
    row = Row(
        labels={"scenarios": name, "proven": len(gaps)},
        values={
            "auto_mean_percent": mean,
            "auto_worst_percent": worst,
            "ready_mean_percent": sum(plain) / len(plain),
            "ready_worst_percent": max(plain),
            "slowest_plan_s": max(seconds),
        },
    )
    return row, [
        _most(f"auto above the optimum, {name}, mean %", MEAN_PERCENT, mean),
        _most(f"auto above the optimum, {name}, worst %", WORST_PERCENT, worst),
    ]


def against_others(quick: bool) -> tuple[list[Row], list[Target]]:
    """Measure how much longer plans of each schedule take than plans of `auto`, or exceed a cap."""
    stages, counts, many, few = LARGE
    above: dict[str, list[float]] = {
        name: [] for name, each in SCHEDULES.items() if each.one_stage_a_rank and name != "auto"
    }
    over = dict.fromkeys(above, 0)
    bounds = []
    better = broken = 0
    for seed in range(FIRST_SEED, FIRST_SEED + (few if quick else many)):
        scenario = draw(seed, stages, counts)
        found = auto(scenario)
        broken += check(found.plan, scenario) is not None
        bounds.append(100 * (found.makespan_ps / found.lower_bound_ps - 1))
        for name, distances in above.items():
            plan = SCHEDULES[name].make(scenario, Options())
            distances.append(100 * (replay(plan, scenario).makespan_ps / found.makespan_ps - 1))
            if check(plan, scenario) is not None:
                over[name] += 1
            elif distances[-1] < 0:
                better += 1
    rows = [
        Row(
            labels={"schedule": name},
            values={
                "above_auto_mean_percent": sum(distances) / len(distances),
                "above_auto_worst_percent": max(distances),
                "over_the_cap_percent": 100 * over[name] / len(distances),
            },
        )
        for name, distances in above.items()
    ]
    bound = {"above_bound_mean_percent": sum(bounds) / len(bounds)}
    rows.append(Row(labels={"schedule": "auto"}, values=bound))
    return rows, [
        _most("schedules that fit and are shorter than auto", 0, better),
        _most("plans of auto over a cap", 0, broken),
    ]


def against_a_publication(quick: bool) -> tuple[list[Row], list[Target]]:
    """Compare readiness and `auto` with a published list scheduler and with published optima."""
    again = [each for each in published() if each.drawn_again]
    if quick:
        again = [each for each in again if each.rounded.stages <= 4]
    rows, gaps, equal = [], [], 0
    for stages in dict.fromkeys(each.rounded.stages for each in again):
        found = [each for each in again if each.rounded.stages == stages]
        same = sum(each.ready_ms() == each.published_ms for each in found)
        mine = [100 * each.auto_gap() for each in found]
        equal, gaps = equal + same, gaps + mine
        rows.append(
            Row(
                labels={"stages": stages, "scenarios": len(found)},
                values={
                    "equal_to_published": same,
                    "published_gap_percent": 100
                    * sum(each.published_gap for each in found)
                    / len(found),
                    "auto_gap_percent": sum(mine) / len(mine),
                },
            )
        )
    return rows, [
        Target(
            name="published scenarios in which readiness takes the published time, %",
            target=100,
            measured=100 * equal / len(again),
        ),
        _most("auto above published optima, worst %", 0.001, max(gaps)),
    ]


def durations(quick: bool) -> tuple[list[Row], list[Target]]:
    """Measure the time to plan with two slow links and a cap of S activations.

    S is the number of stages. The slowest of three scenarios counts.
    """
    rows, targets = [], []
    for stages, count, target in SIZES:
        labels = {"stages": stages, "microbatches": count}
        name = f"planning {stages} x {count}, s"
        if quick and target > 10:
            rows.append(Row(labels=labels, skipped="only without --quick"))
            targets.append(_most(name, target, None))
            continue
        ms = 10**9
        scenario = Scenario.uniform(stages, count, (10 * ms, 11 * ms, 9 * ms), cap=stages)
        scenario = scenario.delayed(stages - 2, 60 * ms).delayed(stages // 2, 25 * ms)
        took = max(_seconds(lambda scenario=scenario: auto(scenario)) for _ in range(3))
        found = auto(scenario)
        above = 100 * (found.makespan_ps / found.lower_bound_ps - 1)
        rows.append(Row(labels=labels, values={"seconds": took, "above_bound_percent": above}))
        targets.append(_most(name, target, took))
    return rows, targets


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _most(name: str, target: float, measured: float | None) -> Target:
    return Target(name=name, target=target, measured=measured, bound="at most")


def _table(title: str, rows: list[Row]) -> Table:
    keys = list(dict.fromkeys(key for row in rows for key in row.as_json()))
    table = Table(*(key.replace("_", " ") for key in keys), title=title)
    for row in rows:
        cells = row.as_json()
        table.add_row(*(_text(cells.get(key, "-")) for key in keys))
    return table


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Make all measurements and print the report."""
    options = parse(__doc__ or "")
    machine = describe_machine()
    small, targets = against_optimum("small", options.quick)
    middle, more = against_optimum("middle", options.quick)
    targets += more
    others, more = against_others(options.quick)
    targets += more
    drawn_again, more = against_a_publication(options.quick)
    targets += more
    times, more = durations(options.quick)
    targets += more
    rows = [small, middle, *others, *drawn_again, *times]
    report = Report(rows=rows, targets=targets, machine=machine)
    tables = [
        _table("against proven optima", [small, middle]),
        _table("against other schedules", others),
        _table("against a published list scheduler", drawn_again),
        _table("planning time", times),
    ]
    report.print(tables, options)


if __name__ == "__main__":
    main()
