"""Measure all_reduces through an aggregation node in software: four workers and a node in a lab.

Cut-through forwarding is compared with store-and-forward, and the star plan with the ring, the mesh
and gloo. The report compares each time with the bound that the wire sets.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _harness.aggregation_node import aggregation_node
from _harness.machine import describe_machine
from _harness.options import Options, parse
from _harness.ranks import LabRanks
from _harness.report import Report
from cases import (
    GBIT,
    GLOO,
    MESH,
    NODE,
    RATES,
    RING,
    SIZES,
    STAR,
    STORE,
    SYSTEMS,
    WORKERS,
    Size,
)
from performer import Performer
from results import Results

from slackline.errors import UsageError
from slackline.faults import parse_all
from slackline.lab import Lab, LabOptions

ROUNDS, QUICK_ROUNDS = 3, 1
QUICK_SIZE = SIZES[1]
CONGESTION = "reno"
"""The TCP congestion control of the whole lab; reno needs no timers for each connection."""
HOP_CALLS = 200
_CONTROL = "/proc/sys/net/ipv4/tcp_congestion_control"


@contextmanager
def crew(lab: Lab, *, gloo: bool = False, **environment: str) -> Iterator[LabRanks]:
    """Run workers with the given variables of slackline, named without the prefix SLACKLINE_."""
    variables = {f"SLACKLINE_{name}": value for name, value in environment.items()}
    variables |= {"SLACKLINE_RAILS": "tcp", "SLACKLINE_INTERFACE": "eth0"}
    others = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
    with LabRanks(Performer, lab, environment={**variables, **others}, hosts=WORKERS) as ranks:
        if gloo:
            ranks.ask("open_gloo")
        yield ranks
        ranks.ask("close")


def measure(results: Results, options: Options) -> None:
    """Measure every plan and library at one rate, in turns, size by size."""
    rate, burst = results.rate, results.burst
    # The node has one port for four workers, so this port has four times the rate of a worker's
    # port.
    narrow = "; ".join(f"nic {host}.0 rate {rate}bit" for host in range(WORKERS))
    with ExitStack() as stack:
        lab = stack.enter_context(
            Lab(LabOptions(hosts=WORKERS + 1, rate=WORKERS * rate, burst=burst))
        )
        stack.enter_context(lab.inject(parse_all(narrow)))
        for host in range(WORKERS + 1):
            written = lab.command(host, ["sh", "-c", f"echo {CONGESTION} > {_CONTROL}"])
            subprocess.run(written, check=True)
        flowing = stack.enter_context(aggregation_node(lab, NODE, workers=WORKERS))
        storing = stack.enter_context(aggregation_node(lab, NODE, workers=WORKERS, onset=0))
        star = stack.enter_context(crew(lab, PLAN="star", AGGREGATOR=flowing))
        store = stack.enter_context(crew(lab, PLAN="star", AGGREGATOR=storing))
        ring = stack.enter_context(crew(lab, gloo=True, PLAN="ring"))
        crews = {STAR: star, STORE: store, RING: ring, GLOO: ring}
        if not options.quick:
            crews[MESH] = stack.enter_context(crew(lab, PLAN="mesh"))
        star.ask("prepare", 1, 1)
        calls = star.ask("one_at_a_time", "slackline", HOP_CALLS, 0)
        results.hops = [max(each) for each in zip(*calls, strict=True)]
        if options.quick:
            turns(crews, QUICK_SIZE, QUICK_SIZE.less(), results, QUICK_ROUNDS)
            return
        # A lower rate leaves out 100 MB, which would take minutes.
        for size in SIZES if rate == GBIT else SIZES[:-1]:
            turns(crews, size, size if rate == GBIT else size.less(), results, ROUNDS)


def turns(crews: dict[str, LabRanks], size: Size, how: Size, results: Results, rounds: int) -> None:
    """Measure each plan or library in turns: one call at a time, then streamed.

    `how` gives the numbers of calls and of passes.
    """
    for ranks in {id(ranks): ranks for ranks in crews.values()}.values():
        ranks.ask("prepare", size.count, size.buffers)
    # Run each system once before the clock starts: the first run touches fresh memory.
    for system, ranks in crews.items():
        ranks.ask("streamed", "gloo" if system == GLOO else "slackline", 1, how.outstanding, 0)
    for number in range(rounds):
        known = [system for system in SYSTEMS if system in crews]
        order = known if number % 2 == 0 else known[::-1]
        for system in order:
            ranks, salt = crews[system], number % 4
            group = "gloo" if system == GLOO else "slackline"
            calls = ranks.ask("one_at_a_time", group, how.calls, salt)
            slowest = [max(each) for each in zip(*calls, strict=True)]
            results.single.setdefault((size, system), []).extend(slowest)
            spans = ranks.ask("streamed", group, how.passes, how.outstanding, salt)
            seconds, busy = max(spans)
            each = seconds / (how.passes * how.buffers)
            results.stream.setdefault((size, system), []).append(each)
            results.busy.setdefault((size, system), []).append(busy)
    for ranks in {id(ranks): ranks for ranks in crews.values()}.values():
        ranks.ask("prepare", 0, 0)


def main() -> None:
    options = parse("all_reduces through an aggregation node in software", parts=[*RATES])
    machine = describe_machine()
    every = [Results(name=name, rate=rate, burst=burst) for name, (rate, burst) in RATES.items()]
    for results in every:
        if options.part not in (None, results.name):
            results.skipped = "not asked for"
        elif options.quick and results.rate != min(rate for rate, _ in RATES.values()):
            results.skipped = "left out by --quick"
        else:
            try:
                measure(results, options)
            except UsageError as error:
                results.skipped = str(error)
    report = Report(
        machine=machine,
        rows=[row for results in every for row in results.rows()],
        targets=[target for results in every for target in results.targets()],
    )
    report.print([table for results in every for table in results.tables()], options)


if __name__ == "__main__":
    main()
