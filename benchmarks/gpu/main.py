"""Measure and check the path of CUDA tensors on one GPU, in at most eight minutes.

Each stage runs in processes of its own, under a limit of its own. Figures are written as they are
measured; a stage that hangs is aborted with all stacks, and the next one runs.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from _harness.machine import describe_machine
from _harness.options import parse
from _harness.report import Report, Row
from results import read, rows, stage_table, tables, targets
from runner import Outcome, Runner
from stages import STAGES

BUDGET_S, QUICK_BUDGET_S = 480.0, 45.0
LEAST_S = 8.0
"""The least time in which a stage is begun."""


def main() -> None:
    options = parse(
        "the path of CUDA tensors on one GPU",
        parts=tuple(stage.name for stage in STAGES),
        switches={"cpu": "run on the CPU, with tiny sizes: shows that the code runs"},
        writes="the folder that gets results.jsonl and the logs of all ranks",
    )
    machine, cpu = describe_machine(), "cpu" in options.switches
    figures: list[Row] = []
    outcomes: list[Outcome] = []
    if not cpu and not torch.cuda.device_count():
        reason = "no CUDA device; --cpu runs the stages' code without one"
        figures = [Row(labels={"stage": stage.name}, skipped=reason) for stage in STAGES]
        found, notes, noted = [], [reason], []
    else:
        os.environ["OMP_NUM_THREADS"] = "1"  # Ranks share the processors.
        folder = options.out or Path(tempfile.mkdtemp(prefix="slackline-gpu-"))
        folder.mkdir(parents=True, exist_ok=True)
        runner = Runner(folder, cpu=cpu)
        outcomes, left_out = run(runner, options.part, cpu=cpu, quick=options.quick)
        noted = read(runner.results)
        figures = [
            *rows(noted),
            *(Row(labels={"stage": name}, skipped=why) for name, why in left_out.items()),
        ]
        found = [*tables(noted), stage_table(outcomes, cpu=cpu)]
        notes = [f"{name} was left out: {why}" for name, why in left_out.items()]
        notes += [each.said for each in outcomes if each.said]
        if cpu:
            blind = [stage.name for stage in STAGES if not stage.shown]
            notes.append(f"Without a device these stages show nothing: {', '.join(blind)}.")
        notes.append(f"All figures and logs are in {folder}.")
    report = Report(machine=machine, rows=figures, targets=targets(noted, outcomes, cpu=cpu))
    report.print(found, options, notes=notes)
    if any(outcome.failed for outcome in outcomes):
        raise SystemExit(1)


def run(
    runner: Runner, part: str | None, *, cpu: bool, quick: bool
) -> tuple[list[Outcome], dict[str, str]]:
    """Run the stages; return how they ended, and why others were left out."""
    began_s, budget_s = time.monotonic(), QUICK_BUDGET_S if quick else BUDGET_S
    outcomes, left_out = list[Outcome](), dict[str, str]()
    for stage in STAGES:
        left_s = budget_s - (time.monotonic() - began_s)
        if part not in (None, stage.name):
            continue
        if cpu and not stage.also_on_cpu:
            left_out[stage.name] = "on the CPU another stage shows the same"
        elif left_s < LEAST_S:
            left_out[stage.name] = f"the {budget_s:g} s of the run were over"
        else:
            outcomes.append(runner.run(stage, left_s=left_s))
            print(_line(outcomes[-1]), file=sys.stderr, flush=True)
    return outcomes, left_out


def _line(outcome: Outcome) -> str:
    return f"{outcome.stage}: ended with {' '.join(outcome.ended)} after {outcome.seconds:g} s"


if __name__ == "__main__":
    main()
