"""Measure pipelines over slow links: PyTorch's schedules over two backends, and slackline.pipeline.

In the part "computing" the stages are blocks of a small GPT, and the links are those of one host.
The part "own-cost" has stages that do nothing.
In all other parts each rank is a host of a lab and one stage of the pipeline. Stages sleep where
they would compute, so that eight of them fit on two cores. Autograd, messages and runtimes are
real. Every iteration begins at the same moment on all ranks, and ends with the last rank.
"""

from __future__ import annotations

import sys
import time
from itertools import groupby
from operator import attrgetter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import computing
import own_cost
import replay
from _harness.machine import describe_machine
from _harness.options import Options, parse
from _harness.ranks import LabRanks
from _harness.report import Report
from _harness.timed_pipeline import Shape
from cases import CASES, LARGE, MS, PARTS, QUICK_CASES, Case
from contestants import AUTO, ENTRIES, OURS_1F1B, OURS_ZB, Entry
from performer import Performer
from predictions import simulated_ms
from results import Results
from targets import targets

from slackline.errors import UsageError
from slackline.faults import parse_all
from slackline.lab import Lab, LabOptions

ROUNDS, QUICK_ROUNDS = 3, 1
LEAD_MS = 40
"""The time in ms between the main process's request and the moment at which the ranks begin."""
TRACED = (OURS_1F1B, OURS_ZB, AUTO)
ENVIRONMENT = {"SLACKLINE_RAILS": "tcp", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}


def iterations(lab: Lab, ranks: LabRanks, case: Case, entry: Entry, rounds: int) -> list[list]:
    """Run a contestant's iterations on a network with faults; return all after the warm-up.

    The result has the answer of every rank for each round.
    """
    found = []
    warm_up = entry.warm_up if rounds > QUICK_ROUNDS or entry.torch is None else 0
    for number in range(warm_up + rounds):
        plan = parse_all(case.faults(LEAD_MS))
        with lab.inject(plan, started=False) as injection:
            start_ns = time.monotonic_ns() + LEAD_MS * MS
            injection.start()
            answers = ranks.ask("iterate", start_ns)
        if number >= warm_up:
            found.append(answers)
    return found


def play(
    shape: Shape, rate: int | None, cases: list[Case], results: Results, options: Options
) -> None:
    """Measure all contestants with pipelines of one shape, on each network, in a lab of its own."""
    entries = [entry for entry in ENTRIES if entry.quick or not options.quick]
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    with (
        Lab(LabOptions(hosts=shape.stages, rate=rate, switch="user")) as lab,
        LabRanks(Performer, lab, environment=ENVIRONMENT) as ranks,
    ):
        results.disturbed |= not all(ranks.ask("before_others"))
        for entry in entries:
            order = ranks.ask("prepare", shape, entry.name)[0]
            # The first iteration exchanges tensor shapes, which must not happen over a slow link.
            ranks.ask("iterate", time.monotonic_ns() + LEAD_MS * MS)
            for case in cases:
                print(f"{case}: {entry.name}", file=sys.stderr)
                rounds_of = iterations(lab, ranks, case, entry, rounds)
                simulated = simulated_ms(entry, case, order)
                results.record(case, entry.name, rounds_of, simulated)
        ranks.ask("close")


def play_trace(results: Results) -> None:
    """Replay the recorded run with each of a few contestants, in a lab of hosts with two NICs."""
    options = LabOptions(hosts=LARGE.stages, nics=2, switch="user")
    with Lab(options) as lab:

        def start() -> LabRanks:
            return LabRanks(Performer, lab, environment=ENVIRONMENT)

        restart_s = replay.restart_seconds(start, OURS_1F1B)
        for name in TRACED:
            ours = name not in (OURS_1F1B, OURS_ZB)
            with start() as ranks:
                ranks.ask("prepare", LARGE, name)
                ranks.ask("train", 1, time.monotonic_ns())
                phases = replay.run(lab, ranks, name, nic_fails=ours)
                results.replayed(name, phases, 0.0 if ours else restart_s, replay.SCALE)
                ranks.ask("close")


def chosen(options: Options) -> list[Case]:
    cases = QUICK_CASES if options.quick else CASES
    return [case for case in cases if options.part in (None, case.part)]


def main() -> None:
    options = parse("pipelines over slow links", parts=(*PARTS, computing.PART, own_cost.PART))
    results = Results()
    machine = describe_machine()
    cases = chosen(options)
    replays = options.part in (None, "trace")
    try:
        for (shape, rate), of_shape in groupby(cases, key=attrgetter("shape", "rate")):
            play(shape, rate, list(of_shape), results, options)
        if replays and not options.quick:
            play_trace(results)
    except UsageError as error:
        for case in cases:
            results.skip_case(case, str(error))
    for part in PARTS:
        if options.quick and options.part in (None, part) and part != PARTS[0]:
            results.skip({"part": part}, "left out by --quick")
    computed = computing.Computed()
    if options.quick and options.part is None:
        results.skip({"part": computing.PART}, "left out by --quick")
    elif options.part in (None, computing.PART):
        computed = computing.measure(options)
    own = own_cost.OwnCost()
    if options.part in (None, own_cost.PART):
        own = own_cost.measure(options)
    report = Report(
        machine=machine,
        rows=[*own.rows(), *computed.rows(), *results.rows()],
        targets=[*own.targets(), *computed.targets(), *targets(results)],
    )
    tables = [*own.tables(), *computed.tables(), *results.tables()]
    report.print(tables, options, notes=[*computed.notes, *results.notes()])


if __name__ == "__main__":
    main()
