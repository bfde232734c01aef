"""Measure the difference between simulated and measured times on hosts of a lab.

The simulator gets a rate and a latency, which are derived from two all_reduces on two hosts before
anything else is measured. For pipelines it gets the time of an instruction, for failing NICs the
time until frames are sent again, each from a case that is not judged and is measured before the
judged ones. All other figures follow from the plans, the sizes and the lab. With `--measured`, the
measurements come from the JSON of earlier runs, and nothing is measured.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cuts
import delegated_cases
import delegates
import measure
import pipelines
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
    DELEGATED,
    FULL,
    HOSTS,
    LONG,
    MODELS,
    NIC_CUT,
    NOT_FITTED,
    PARTS,
    PIPELINES,
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
    Fitted,
    calibrate,
    simulated_ps,
    simulated_step_ps,
)
from recorded import compare_recorded
from results import Comparison, table_of, targets_of
from unfitted import Predicted, predictions, table_of_predictions, targets_of_predictions

from slackline.errors import UsageError
from slackline.lab import Lab, LabOptions


def compare_cells(
    part: str, measured: Mapping[Cell, measure.Calls], calibration: Calibration
) -> list[Comparison]:
    """Return the comparison of each cell's all_reduce."""
    return [
        Comparison.of_lives(
            part=part,
            case=str(cell),
            lives_s=calls.lives_s,
            simulated_s=simulated_ps(cell, calibration, round(calls.pause_s * 1e12)) / 1e12,
            pause_s=calls.pause_s,
        )
        for cell, calls in measured.items()
    ]


def fitted(calls: measure.Calls) -> Fitted:
    """Return the medians of a cell's calls."""
    return Fitted(
        time_ps=round(statistics.median(chain(*calls.lives_s)) * 1e12),
        pause_ps=round(calls.pause_s * 1e12),
    )


def train(lab: Lab, calibration: Calibration, effort: Effort) -> list[Comparison]:
    """Measure and simulate the training steps."""
    return [
        Comparison.of_lives(
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


def pipe(effort: Effort, quick: bool) -> tuple[list[Comparison], str]:
    """Measure and simulate iterations of pipelines; return the found time of an instruction too."""
    with Lab(pipelines.lab_options()) as lab:
        chosen = pipelines.measured(lab, (pipelines.FITTED,), effort)
        turn_ps = pipelines.found_turn_ps(chosen.lives_s[pipelines.FITTED])
        asked = pipelines.QUICK_PIPELINES if quick else pipelines.PIPELINES
        judged = pipelines.measured(lab, asked, effort)
    note = f"pipelines: an instruction takes {turn_ps / 1e6:.1f} us longer than it waits"
    if not (chosen.before_others and judged.before_others):
        note += "; ranks had no priority over other programs"
    found = [
        Comparison.of_lives(
            part=part,
            case=str(pipeline),
            lives_s=lives,
            simulated_s=pipelines.simulated_ps(pipeline, turn_ps) / 1e12,
        )
        for part, run in ((CALIBRATION, chosen), (PIPELINES, judged))
        for pipeline, lives in run.lives_s.items()
    ]
    return found, note


def delegate(
    lab: Lab, calibration: Calibration, effort: Effort, quick: bool
) -> tuple[list[Comparison], str]:
    """Measure and simulate pipelines with delegates; return the found time of a copy too."""
    fitted = delegated_cases.FITTED
    asked = delegated_cases.QUICK_DELEGATED if quick else delegated_cases.DELEGATED
    run = delegates.measured(lab, [fitted, *asked], effort)
    copy_ps = delegated_cases.found_copy_ps(run.lives_s[fitted], calibration)
    note = f"delegated: a copy takes {copy_ps / 1e6:.1f} us longer than its bytes"
    if not run.before_others:
        note += "; ranks had no priority over other programs"
    found = [
        Comparison.of_lives(
            part=CALIBRATION if case == fitted else DELEGATED,
            case=str(case),
            lives_s=lives,
            simulated_s=delegated_cases.simulated_ps(case, calibration, copy_ps) / 1e12,
        )
        for case, lives in run.lives_s.items()
    ]
    return found, note


def cut_nics(calibration: Calibration, effort: Effort, quick: bool) -> tuple[list[Comparison], str]:
    """Measure and simulate failures of a NIC; return the found time until frames are resent too."""
    with Lab(cuts.lab_options()) as lab:
        chosen = cuts.measured(lab, (cuts.FITTED,), effort.cuts)
        resend_ps = cuts.found_resend_ps(chosen[cuts.FITTED], calibration)
        judged = cuts.measured(lab, cuts.QUICK_CUTS if quick else cuts.CUTS, effort.cuts)
    found = [
        Comparison.of_lives(
            part=part,
            case=str(cut),
            lives_s=lives,
            simulated_s=cuts.simulated_ps(cut, calibration, resend_ps) / 1e12,
        )
        for part, run in ((CALIBRATION, chosen), (NIC_CUT, judged))
        for cut, lives in run.items()
    ]
    return found, cuts.resend_note(resend_ps)


def run(options: Options) -> tuple[list[Comparison], list[str]]:
    """Calibrate, then measure and simulate the cases of the parts that the options ask for.

    Returns the comparisons, and sentences about the figures that were found by calibration.
    """
    parts = parts_of(options)
    if parts == (NOT_FITTED,):
        return [], []
    effort = QUICK if options.quick else FULL
    with Lab(LabOptions(hosts=HOSTS + 1, rate=RATE_BPS, burst=BURST_BYTES)) as lab:
        measured = measure.all_reduces(lab, (SHORT, LONG), effort)
        calibration = calibrate(fitted(measured[SHORT]), fitted(measured[LONG]))
        notes = [
            f"calibration: {calibration.rate_bps / 1e6:.2f} Mbit/s, "
            f"{calibration.latency_ps / 1e6:.1f} us a cable"
        ]
        found = compare_cells(CALIBRATION, measured, calibration)
        if COLLECTIVES in parts:
            judged = measure.all_reduces(lab, QUICK_CELLS if options.quick else CELLS, effort)
            found += compare_cells(COLLECTIVES, judged, calibration)
        if TRAINING in parts:
            found += train(lab, calibration, effort)
        if AGGREGATOR in parts:
            found += aggregate(lab, calibration, effort)
        if DELEGATED in parts:
            carried, note = delegate(lab, calibration, effort, options.quick)
            found, notes = found + carried, [*notes, note]
    if PIPELINES in parts:
        piped, note = pipe(effort, options.quick)
        found, notes = found + piped, [*notes, note]
    if NIC_CUT in parts:
        cut, note = cut_nics(calibration, effort, options.quick)
        found, notes = found + cut, [*notes, note]
    return found, notes


def parts_of(options: Options) -> tuple[str, ...]:
    """Return the parts that are measured: the part asked for, or all, or a quick run's only one."""
    if options.part is not None:
        return (options.part,)
    return (COLLECTIVES,) if options.quick else PARTS


def main() -> None:
    options = parse(
        "how far simulated times are from measured ones", parts=PARTS, takes_measured=True
    )
    machine = describe_machine()
    found: list[Comparison] = []
    reason, notes = "left out by --quick" if options.part is None else "not asked for", []
    if options.measured:
        reason = "not simulated from recorded measurements"
        try:
            found, notes = compare_recorded(options.measured, options.part)
        except UsageError as error:
            sys.exit(str(error))
    else:
        try:
            found, notes = run(options)
        except UsageError as error:
            reason = str(error)
    predicted: list[Predicted] = []
    if NOT_FITTED in parts_of(options) and not options.measured:
        predicted = predictions(options.quick)
    rows = [each.row() for each in found] + [each.report_row() for each in predicted]
    known = {each.part for each in found} | {NOT_FITTED for _ in predicted[:1]}
    rows += [Row(labels={"part": part}, skipped=reason) for part in PARTS if part not in known]
    targets = [*targets_of(found), *targets_of_predictions(predicted)]
    report = Report(machine=machine, rows=rows, targets=targets)
    tables = [table_of(found)] if found or not predicted else []
    tables += [table_of_predictions(predicted)] if predicted else []
    report.print(tables, options, notes)


if __name__ == "__main__":
    main()
