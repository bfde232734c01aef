"""Measure the difference between simulated and measured times on hosts of a lab.

The simulator gets a rate and a latency, which are derived from two all_reduces on two hosts before
anything else is measured; all other figures follow from the plans, the sizes and the lab.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measure
from _harness.aggregation_node import aggregation_node
from _harness.machine import describe_machine
from _harness.options import Options, parse
from _harness.report import Report, Row
from cases import (
    AGGREGATOR,
    BURST_BYTES,
    CALIBRATION,
    CELLS,
    COLLECTIVES,
    FULL,
    HOSTS,
    LONG,
    MODELS,
    PARTS,
    QUICK,
    QUICK_CELLS,
    RATE_BPS,
    SHORT,
    STAR_CELLS,
    TRAINING,
    Cell,
    Effort,
)
from predictions import (
    Calibration,
    calibrate,
    simulated_ps,
    simulated_step_ps,
)
from results import Comparison, table_of, targets_of

from slackline.errors import UsageError
from slackline.lab import Lab, LabOptions

Lives = Sequence[Sequence[float]]


def compare_cells(
    part: str, measured: Mapping[Cell, Lives], calibration: Calibration
) -> list[Comparison]:
    """Return the comparison of each cell's all_reduce."""
    return [
        Comparison(
            part=part,
            case=str(cell),
            lives_s=lives,
            simulated_s=simulated_ps(cell, calibration) / 1e12,
        )
        for cell, lives in measured.items()
    ]


def train(lab: Lab, calibration: Calibration, effort: Effort) -> list[Comparison]:
    """Measure and simulate the training steps."""
    return [
        Comparison(
            part=TRAINING,
            case=f"{method}, {model.name}",
            lives_s=lives,
            simulated_s=simulated_step_ps(model, method, calibration) / 1e12,
        )
        for (model, method), lives in measure.steps(lab, MODELS, effort).items()
    ]


def aggregate(lab: Lab, calibration: Calibration, effort: Effort) -> list[Comparison]:
    """Measure and simulate all_reduces through an aggregation node on the last host."""
    with aggregation_node(lab, HOSTS, workers=HOSTS) as address:
        found = measure.all_reduces(lab, STAR_CELLS, effort, AGGREGATOR=address)
    return compare_cells(AGGREGATOR, found, calibration)


def run(options: Options) -> tuple[list[Comparison], Calibration]:
    """Calibrate, then measure and simulate the cases of the parts that the options ask for."""
    asked = (COLLECTIVES,) if options.quick else PARTS
    effort = QUICK if options.quick else FULL
    parts = [part for part in asked if options.part in (None, part)]
    with Lab(LabOptions(hosts=HOSTS + 1, rate=RATE_BPS, burst=BURST_BYTES)) as lab:
        measured = measure.all_reduces(lab, (SHORT, LONG), effort)
        short, long = (statistics.median(chain(*measured[cell])) for cell in (SHORT, LONG))
        calibration = calibrate(round(short * 1e12), round(long * 1e12))
        found = compare_cells(CALIBRATION, measured, calibration)
        if COLLECTIVES in parts:
            judged = measure.all_reduces(lab, QUICK_CELLS if options.quick else CELLS, effort)
            found += compare_cells(COLLECTIVES, judged, calibration)
        if TRAINING in parts:
            found += train(lab, calibration, effort)
        if AGGREGATOR in parts:
            found += aggregate(lab, calibration, effort)
    return found, calibration


def main() -> None:
    options = parse("how far simulated times are from measured ones", parts=PARTS)
    machine = describe_machine()
    found: list[Comparison] = []
    reason, notes = "left out by --quick" if options.quick else "not asked for", []
    try:
        found, calibration = run(options)
        notes = [
            f"calibration: {calibration.rate_bps / 1e6:.2f} Mbit/s, "
            f"{calibration.latency_ps / 1e6:.1f} us a cable"
        ]
    except UsageError as error:
        reason = str(error)
    rows = [each.row() for each in found]
    known = {each.part for each in found}
    rows += [Row(labels={"part": part}, skipped=reason) for part in PARTS if part not in known]
    report = Report(machine=machine, rows=rows, targets=targets_of(found))
    report.print([table_of(found)], options, notes)


if __name__ == "__main__":
    main()
