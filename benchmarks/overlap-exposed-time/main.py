"""Measure the communication time that training waits for: PCCO, DDP over gloo, blocking allreduces.

PCCO is the method of slackline.overlap. Four hosts of a lab with one NIC each, of 1 Gbit/s or of
200 Mbit/s, train the same model. All contestants of a case are alive in the same processes and take
turns.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _harness.machine import describe_machine
from _harness.options import Options, parse
from _harness.ranks import LabRanks
from _harness.report import Report
from cases import CASES, DDP_BUCKETS_MB, HOSTS, NETWORKS, REAL, Case
from performer import Performer
from results import Results

from slackline.errors import UsageError
from slackline.lab import Lab, LabOptions

ROUNDS, QUICK_ROUNDS = 2, 1
STEPS, QUICK_STEPS = 3, 1
WARM_UP, QUICK_WARM_UP = 2, 1
"""The number of steps before the clock starts.

After a pause a contestant finds idle connections, and ranks that are not in step yet: the first
step after another contestant's turn exposes up to 100 ms more.
"""
QUICK_CASES = CASES[:1]


def play(ranks: LabRanks, case: Case, results: Results, options: Options) -> None:
    """Measure the contestants on one network, in turns; reverse the order every other round."""
    buckets_mb = DDP_BUCKETS_MB[:2] if options.quick else DDP_BUCKETS_MB
    names = ranks.ask("prepare", case, buckets_mb)[0]
    warm_up, steps = (QUICK_WARM_UP, QUICK_STEPS) if options.quick else (WARM_UP, STEPS)
    for number in range(QUICK_ROUNDS if options.quick else ROUNDS):
        for name in names if number % 2 == 0 else reversed(names):
            results.record(case, name, ranks.ask("turn", name, warm_up, steps))
    ranks.ask("check")


def main() -> None:
    options = parse(
        "communication that training waits for: PCCO, DDP over gloo, blocking",
        parts=[network.name for network in NETWORKS],
    )
    results = Results()
    machine = describe_machine()
    environment = {
        "SLACKLINE_RAILS": "tcp",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "eth0",
    }
    cases = QUICK_CASES if options.quick and options.part is None else (*CASES, REAL)
    cases = tuple(case for case in cases if options.part in (None, case.network.name))
    for network in NETWORKS:
        there = [case for case in cases if case.network == network]
        if not there:
            continue
        try:
            with (
                Lab(LabOptions(hosts=HOSTS, rate=network.rate)) as lab,
                LabRanks(Performer, lab, environment=environment) as ranks,
            ):
                for case in there:
                    play(ranks, case, results, options)
                ranks.ask("close")
        except UsageError as error:
            for case in there:
                results.skip(case, str(error))
    for case in (*CASES, REAL):
        if case not in cases:
            results.skip(case, "left out by --quick" if options.part is None else "not asked for")
    report = Report(machine=machine, rows=results.rows(), targets=results.targets())
    report.print(results.tables(), options, notes=results.notes())


if __name__ == "__main__":
    main()
