"""Measure how often, and how soon, the cause of slow steps gets its right name.

The part "simulated" draws faults of all kinds from a fixed seed and diagnoses simulated jobs. The
part "healthy" counts the names that healthy jobs get. The part "lab" trains with real ranks on the
hosts of a lab, with real faults, and the part "start" on labs that were slow before.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import lab
import start
from _harness.machine import describe_machine
from _harness.options import Options, parse
from _harness.report import Report, Row, Target
from rich.table import Table
from scenarios import HEALTHY, KINDS, LAWS, Scenario, draw
from simulated import Outcome, diagnosed

PARTS = ("simulated", "healthy", "lab", "start")
SCENARIOS, QUICK_SCENARIOS = 240, 40
HEALTHY_NS, QUICK_HEALTHY_NS = 3600 * 10**9, 60 * 10**9
"""The length of each of the eight healthy jobs: eight hours together."""
LEAST_PERCENT = 95.0
MOST_SECONDS = 5.0
NONE = "none"
START_JOBS = 18
"""Two jobs of each kind that a lab can be slow by before a job begins."""
MOST_START_SECONDS = 12.0
"""10 s from the first step, which begins within 2 s."""


def right(scenario: Scenario, outcome: Outcome) -> bool:
    """Return whether the first name is right and no other name was given."""
    expected = [] if scenario.kind is None else [(scenario.kind, scenario.name)]
    return [(cause.kind, cause.name) for _, cause in outcome.named] == expected


def row(scenario: Scenario, outcome: Outcome) -> Row:
    kind, name = outcome.first()
    values: dict[str, str | int | float] = {
        "named_kind": str(kind),
        "named": name or NONE,
        "right": int(right(scenario, outcome)),
        "names": len(outcome.named),
    }
    if outcome.named:
        values["seconds"] = round((outcome.named[0][0] - outcome.start_ns) / 1e9, 2)
    return Row(
        labels={
            "scenario": scenario.number,
            "kind": str(scenario.kind or NONE),
            "fault": scenario.words,
            "law": scenario.law,
            "traffic": "ring" if scenario.ring else "all to all",
            "rails": scenario.rails,
        },
        values=values,
    )


def simulated(options: Options, pool: ProcessPoolExecutor) -> tuple[list[Row], list[Target]]:
    """Diagnose the drawn scenarios; return a row for each, and the targets."""
    scenarios = draw(QUICK_SCENARIOS if options.quick else SCENARIOS)
    outcomes = list(pool.map(diagnosed, scenarios))
    rows = [row(scenario, outcome) for scenario, outcome in zip(scenarios, outcomes, strict=True)]
    percent = 100 * statistics.mean(int(each.values["right"]) for each in rows)
    seconds = [
        float(each.values["seconds"])
        for each in rows
        if each.values["right"] and each.labels["kind"] != NONE
    ]
    return rows, [
        Target(name="simulated: right names in %", target=LEAST_PERCENT, measured=percent),
        Target(
            name="simulated: median seconds to the name",
            target=MOST_SECONDS,
            measured=statistics.median(seconds) if seconds else None,
            bound="at most",
        ),
    ]


def healthy(options: Options, pool: ProcessPoolExecutor) -> tuple[list[Row], list[Target]]:
    """Diagnose eight healthy jobs: each law of jitter with each kind of traffic."""
    lasts_ns = QUICK_HEALTHY_NS if options.quick else HEALTHY_NS
    jobs = [
        replace(HEALTHY, number=10_000 + number, law=law, ring=ring)
        for number, (law, ring) in enumerate((law, ring) for law in LAWS for ring in (False, True))
    ]
    outcomes = list(pool.map(diagnosed, jobs, [lasts_ns] * len(jobs)))
    rows = [
        Row(
            labels={
                "kind": "healthy",
                "law": job.law,
                "traffic": "ring" if job.ring else "all to all",
            },
            values={
                "hours": round(lasts_ns / 3.6e12, 3),
                "names": len(outcome.named),
                "first": outcome.first()[1] or NONE,
            },
        )
        for job, outcome in zip(jobs, outcomes, strict=True)
    ]
    names = sum(len(outcome.named) for outcome in outcomes)
    hours = len(jobs) * lasts_ns / 3.6e12
    target = Target(
        name=f"healthy: names in {hours:.2g} simulated hours",
        target=0,
        measured=names,
        bound="at most",
    )
    return rows, [target]


def in_lab(options: Options) -> tuple[list[Row], list[Target]]:
    """Diagnose real jobs on a lab's hosts; without root or with --quick the row is skipped."""
    name = "lab: right names in %"
    reason = "only without --quick" if options.quick and options.part is None else None
    if os.geteuid() != 0:
        reason = "a lab needs root"
    if reason is not None:
        skipped = Row(labels={"part": "lab"}, skipped=reason)
        return [skipped], [Target(name=name, target=LEAST_PERCENT, measured=None)]
    cases = lab.QUICK if options.quick else lab.CASES
    rows = [lab.measure(case) for case in cases]
    percent = 100 * statistics.mean(int(each.values["right"]) for each in rows)
    lines = [float(each.values["line_seconds"]) for each in rows if "line_seconds" in each.values]
    return rows, [
        Target(name=name, target=LEAST_PERCENT, measured=percent),
        Target(
            name="lab: median seconds from the fault to the line of slackline run",
            target=MOST_SECONDS,
            measured=statistics.median(lines) if lines else None,
            bound="at most",
        ),
    ]


def from_the_start(options: Options) -> tuple[list[Row], list[Target]]:
    """Diagnose real jobs on labs that were slow before; without root, or quick, it is skipped."""
    name = "start: right names in %"
    reason = "only without --quick" if options.quick and options.part is None else None
    if os.geteuid() != 0:
        reason = "a lab needs root"
    if reason is not None:
        skipped = Row(labels={"part": "start"}, skipped=reason)
        return [skipped], [Target(name=name, target=LEAST_PERCENT, measured=None)]
    seeds = range(1, 2) if options.quick else range(START_JOBS)
    rows = []
    for seed in seeds:
        job = start.draw(seed)
        named = start.run(job)
        wrong = start.judged(job, named)
        values: dict[str, str | int | float] = {"right": int(not wrong)}
        values["named"] = ", ".join(named.names) or NONE
        if named.seconds is not None:
            values["seconds"] = round(named.seconds, 1)
        rows.append(Row(labels={"kind": job.kind, "job": str(job)}, values=values))
    seconds = [float(each.values["seconds"]) for each in rows if "seconds" in each.values]
    return rows, [
        Target(
            name=name,
            target=LEAST_PERCENT,
            measured=100 * statistics.mean(int(each.values["right"]) for each in rows),
        ),
        Target(
            name="start: longest time from the open group to the name in s",
            target=MOST_START_SECONDS,
            measured=max(seconds, default=None),
            bound="at most",
        ),
    ]


def confusion(rows: list[Row]) -> Table:
    """Return the table of the kinds of faults by the kinds of the first names."""
    kinds = [str(kind or NONE) for kind in KINDS]
    table = Table("fault", *kinds, "right", "median s", title="first names by kind of fault")
    for kind in kinds:
        mine = [each for each in rows if each.labels["kind"] == kind]
        if not mine:
            continue
        given = Counter(str(each.values["named_kind"]) for each in mine)
        good = [each for each in mine if each.values["right"]]
        seconds = [float(each.values["seconds"]) for each in good if "seconds" in each.values]
        table.add_row(
            kind,
            *(str(given[other] or "") for other in kinds),
            f"{len(good)} of {len(mine)}",
            f"{statistics.median(seconds):.1f}" if seconds else "-",
        )
    return table


def _table(title: str, rows: list[Row]) -> Table:
    keys = list(dict.fromkeys(key for row in rows for key in row.as_json()))
    table = Table(*(key.replace("_", " ") for key in keys), title=title)
    for each in rows:
        cells = each.as_json()
        table.add_row(*(str(cells.get(key, "-")) for key in keys))
    return table


def main() -> None:
    options = parse("names for the causes of slow steps", parts=PARTS)
    machine = describe_machine()
    rows: list[Row] = []
    targets: list[Target] = []
    tables: list[Table] = []
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        if options.part in (None, "simulated"):
            found, judged = simulated(options, pool)
            wrong = [each for each in found if not each.values["right"]]
            tables.append(confusion(found))
            if wrong:
                tables.append(_table("wrong names", wrong))
            rows, targets = rows + found, targets + judged
        if options.part in (None, "healthy"):
            found, judged = healthy(options, pool)
            tables.append(_table("healthy jobs", found))
            rows, targets = rows + found, targets + judged
    if options.part in (None, "lab"):
        found, judged = in_lab(options)
        tables.append(_table("lab", found))
        rows, targets = rows + found, targets + judged
    if options.part in (None, "start"):
        found, judged = from_the_start(options)
        tables.append(_table("slow from the start", found))
        rows, targets = rows + found, targets + judged
    Report(machine=machine, rows=rows, targets=targets).print(tables, options)


if __name__ == "__main__":
    main()
