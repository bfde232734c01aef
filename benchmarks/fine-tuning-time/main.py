"""Measure the time in which a GPT-2 reaches a loss with the Trainer of transformers on two hosts.

The contestants see the same data from the same weights, so that their losses differ by rounding
only: one curve of the loss over steps serves all of them, and each is timed over a few steps.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _harness.machine import describe_machine
from _harness.options import parse
from _harness.report import Report
from _harness.rounds import in_turns
from cases import (
    BF16,
    CONTESTANTS,
    CURVE_STEPS,
    CUT_STEPS,
    DDP,
    EQUAL_STEPS,
    FULL,
    GLOO,
    GLOO_TENTH,
    HOSTS,
    OVERLAP,
    PARTS,
    QUICK,
    QUICK_CONTESTANTS,
    RATES,
    TENTH,
    TENTH_STEPS,
    Contestant,
    Lengths,
)
from jobs import train
from results import Results, equal_steps

from slackline.errors import UsageError
from slackline.lab import Lab, LabOptions


def curve(results: Results) -> None:
    """Record the losses of a whole training, with gradients as fp32 and as bf16.

    Raises ArithmeticError unless gloo, slackline and slackline.overlap have the same losses.
    """
    whole = train(DDP, steps=CURVE_STEPS, size=FULL.size)
    jobs = [whole, *(train(each, steps=EQUAL_STEPS, size=FULL.size) for each in (GLOO, OVERLAP))]
    if not equal_steps(jobs, EQUAL_STEPS):
        raise ArithmeticError(f"the losses differ: {[job.losses[:EQUAL_STEPS] for job in jobs]}")
    results.curves["fp32"] = whole.losses
    results.curves["bf16"] = train(BF16, steps=CURVE_STEPS, size=FULL.size).losses


def time_steps(
    part: str, contestants: Sequence[Contestant], how: Lengths, results: Results
) -> None:
    """Time the steps of the contestants on a lab, in turns."""
    rate = RATES[part]
    for number in range(how.rounds):
        for each in in_turns(contestants, number):
            if each == GLOO_TENTH and number:
                continue  # Its steps take up to a minute: one round has to do.
            steps = how.steps
            if each.cut:
                steps = CUT_STEPS
            elif each in (TENTH, GLOO_TENTH):
                steps = TENTH_STEPS
            job = train(each, steps=steps, size=how.size, rate=rate)
            results.record(rate, each, job, how.warm_up)


def missing() -> str:
    """Return what this machine lacks for a lab or for the Trainer; empty if it lacks nothing."""
    for library in ("transformers", "accelerate"):
        if importlib.util.find_spec(library) is None:
            return f"{library} is not installed"
    try:
        with Lab(LabOptions(hosts=HOSTS)):
            return ""
    except UsageError as error:
        return str(error)


def main() -> None:
    options = parse(
        "the time in which a GPT-2 reaches a loss, on two hosts", parts=PARTS, takes_measured=True
    )
    machine, results = describe_machine(), Results()
    for path in options.measured:
        results.take_curves(json.loads(path.read_text())["rows"])
    lacks = missing()
    parts = [part for part in PARTS if options.part in (None, part)]
    if options.quick and options.part is None:
        parts = ["lab-200m"]
    contestants = QUICK_CONTESTANTS if options.quick else CONTESTANTS
    for part in PARTS:
        reason = lacks
        if not reason and part not in parts:
            reason = "not asked for" if options.part else "left out by --quick"
        if not reason and part == "curve":
            curve(results)
        elif not reason:
            time_steps(part, contestants, QUICK if options.quick else FULL, results)
        names = ("fp32", "bf16") if part == "curve" else [each.name for each in CONTESTANTS]
        for name in names:
            results.skipped[part, name] = reason or "left out by --quick"
    report = Report(machine=machine, rows=results.rows(), targets=results.targets())
    report.print(results.tables(), options)


if __name__ == "__main__":
    main()
