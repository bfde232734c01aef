"""Measure long all_reduces between hosts if one port is slow, or becomes slow midway.

Four hosts of a lab are compared with the bound that their ports set: slackline, the plain ring and
gloo.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _harness.machine import describe_machine
from _harness.options import Options, parse
from _harness.ranks import LabRanks
from _harness.report import Report
from cases import (
    CASES,
    CONTESTANTS,
    GLOO,
    HOSTS,
    LEARNING_BYTES,
    NBYTES,
    QUICK_CASES,
    QUICK_LEARNING_BYTES,
    QUICK_NBYTES,
    RATE,
    RING,
    SLACKLINE,
    Case,
    case_seconds,
)
from performer import Performer
from results import Results

from slackline.errors import UsageError
from slackline.faults import parse_all
from slackline.lab import Lab, LabOptions
from slackline.units import format_duration_ns

ROUNDS, QUICK_ROUNDS = 3, 1
LEAD_NS = 1_000_000_000
"""The time from the request to the ranks until the ranks begin."""


def measure(results: Results, options: Options) -> None:
    """Measure all contestants in turns, case by case."""
    variables = {
        "SLACKLINE_RAILS": "tcp",
        "SLACKLINE_INTERFACE": "eth0",
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "1",
    }
    wanted = options.contestants or CONTESTANTS
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(LabOptions(hosts=HOSTS, rate=RATE)))
        crews: dict[str, LabRanks] = {}
        for contestant in wanted:
            plan = {"SLACKLINE_PLAN": "ring"} if contestant != SLACKLINE else {}
            if contestant == GLOO and RING in crews:
                crews[GLOO] = crews[RING]
            else:
                crew = LabRanks(Performer, lab, environment={**variables, **plan})
                crews[contestant] = stack.enter_context(crew)
        if GLOO in crews:
            crews[GLOO].ask("open_gloo")
        for case in QUICK_CASES if options.quick else CASES:
            if options.part in (None, case.name):
                for _ in range(QUICK_ROUNDS if options.quick else ROUNDS):
                    for contestant, ranks in crews.items():
                        taken = one_round(lab, ranks, contestant, case, results.nbytes, options)
                        results.taken.setdefault((case, contestant), []).append(taken)
        for ranks in {id(ranks): ranks for ranks in crews.values()}.values():
            ranks.ask("close")


def one_round(
    lab: Lab, ranks: LabRanks, contestant: str, case: Case, nbytes: int, options: Options
) -> float:
    """Return the seconds of one all_reduce at the slowest rank.

    Before the measured call, slackline measures the ports' rates in calls that are not counted.
    """
    group = GLOO if contestant == GLOO else "slackline"
    learning = QUICK_LEARNING_BYTES if options.quick else LEARNING_BYTES
    calls = -(-learning // QUICK_NBYTES) if contestant == SLACKLINE else 0
    if not case.midway:
        with lab.inject(parse_all(case.fault)):
            if calls:
                ranks.ask("reduce", group, QUICK_NBYTES, calls, 0)
            return slowest(ranks.ask("reduce", group, nbytes, 1, 0))
    if calls:
        ranks.ask("reduce", group, QUICK_NBYTES, calls, 0)
    even = Case(name="even", slow=CASES[0].slow)
    half_ns = round(case_seconds(even, nbytes) * 1e9 / 2)
    start_ns = time.monotonic_ns() + LEAD_NS
    begin = format_duration_ns(LEAD_NS + half_ns)
    with lab.inject(parse_all(f"{case.fault} from {begin}"), started=False) as injection:
        injection.start()
        return slowest(ranks.ask("reduce", group, nbytes, 1, start_ns))


def slowest(answers: list[list[float]]) -> float:
    """Return the time of the slowest rank."""
    return max(taken for (taken,) in answers)


def main() -> None:
    options = parse(
        "long all_reduces between hosts with uneven ports",
        parts=[case.name for case in CASES],
        contestants=CONTESTANTS,
    )
    machine = describe_machine()
    results = Results(nbytes=QUICK_NBYTES if options.quick else NBYTES)
    try:
        measure(results, options)
    except UsageError as error:
        results.skipped = str(error)
    report = Report(machine=machine, rows=results.rows(), targets=results.targets())
    report.print(results.tables(), options)


if __name__ == "__main__":
    main()
