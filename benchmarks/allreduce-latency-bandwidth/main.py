"""Measure all_reduces of float32: slackline beside gloo, the bare engine and OpenMPI.

All contestants of a case are alive at the same time and take turns. The order is reversed from
round to round, so that other load on the machine falls on all of them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _harness import openmpi
from _harness.machine import describe_machine
from _harness.options import parse
from _harness.programs import Programs
from _harness.ranks import Ranks
from _harness.report import Report
from _harness.rounds import in_turns
from cases import CASES, IDLE_RANKS, Case, Transport, seat
from performer import Performer
from results import Results

Turn = Callable[[int, int, int, int], float]
"""A function of (elements, calls, warm-up calls, salt): seconds a call, at the slowest rank."""

IDLE_SECONDS = 1.0
QUICK_CASE_SECONDS = 3.0
"""The time after which a quick run starts no further round: a busy machine gets fewer rounds."""


def measure(results: Results, ranks: int, rails: str, *, quick: bool) -> None:
    """Measure every message size with `ranks` ranks over one kind of rails, and the idle engine."""
    environment = {
        "SLACKLINE_RAILS": rails,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    transports = [transport for transport in Transport if transport.rails == rails]
    without_mpi = openmpi.missing()
    with ExitStack() as stack:
        group = stack.enter_context(Ranks(Performer, ranks, environment=environment))
        mpi = None
        if without_mpi is None:
            mpi = stack.enter_context(openmpi.on_this_host(ranks, rails))
            mpi.greet()
        # Measure the idle engine before there is a gloo group: gloo's threads wake up 100 times a
        # second.
        if ranks == IDLE_RANKS:
            results.idle_ms[rails] = group.ask("idle", IDLE_SECONDS)
        group.ask("open_gloo")
        for case in CASES:
            if case.ranks == ranks:
                group.ask("prepare", case.count, Transport.REGISTERED in transports)
                samples = _play(case, _turns(group, mpi, transports), quick=quick)
                results.record(case, transports, samples, {"openmpi": without_mpi})
        group.ask("close")


def _turns(group: Ranks, mpi: Programs | None, transports: list[Transport]) -> dict[str, Turn]:
    """Return the turns of all contestants, by name."""

    def ranks_turn(seat: str, _: int, calls: int, warm_up: int, salt: int) -> float:
        seconds: list[float] = group.ask("turn", seat, calls, warm_up, salt)
        return max(seconds)

    ours = [seat(who, where) for where in transports for who in ("slackline", "engine")]
    turns: dict[str, Turn] = {name: partial(ranks_turn, name) for name in [*ours, "gloo"]}
    if mpi is not None:
        turns["openmpi"] = partial(_mpi_turn, mpi)
    return turns


def _mpi_turn(mpi: Programs, count: int, calls: int, warm_up: int, salt: int) -> float:
    return max(usage.seconds for usage in mpi.turn(count, calls, warm_up, salt))


def _play(case: Case, turns: dict[str, Turn], *, quick: bool) -> dict[str, list[float]]:
    """Run all rounds for one message size; return each turn's time in seconds for each round."""
    samples: dict[str, list[float]] = {name: [] for name in turns}
    started = time.monotonic()
    for number in range(case.quick_rounds if quick else case.rounds):
        if quick and number > 0 and time.monotonic() - started > QUICK_CASE_SECONDS:
            break
        for name in in_turns(list(turns), number):
            seconds = turns[name](case.count, case.calls, case.warm_up, number % 4)
            samples[name].append(seconds)
    return samples


def main() -> None:
    options = parse("all_reduce latency and bandwidth: slackline, gloo, OpenMPI")
    results = Results()
    machine = describe_machine()
    for ranks in sorted({case.ranks for case in CASES}):
        for rails in ("tcp", "shm"):
            measure(results, ranks, rails, quick=options.quick)
    report = Report(machine=machine, rows=results.rows(), targets=results.targets())
    report.print([results.table()], options, notes=results.notes())


if __name__ == "__main__":
    main()
