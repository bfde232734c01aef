"""Measure the collectives and a round trip of a message: slackline, gloo and OpenMPI, in turns."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _harness import openmpi
from _harness.machine import describe_machine
from _harness.options import parse
from _harness.programs import Programs
from _harness.ranks import Ranks
from _harness.report import Report
from _harness.rounds import in_turns
from cases import EMPTY, PARTS, QUICK_PARTS, Case, Part, cases
from operations import OPERATIONS
from performer import Performer
from results import Cell, Results

SOURCE = Path(__file__).with_name("mpi_collectives.c")
ROUNDS, CELL_SECONDS, LEAST_ROUNDS = 21, 6.0, 3
QUICK_ROUNDS, QUICK_CELL_SECONDS = 3, 0.4
"""The number of rounds of a cell, and the seconds after which no further round begins, except that
a whole run has at least `LEAST_ROUNDS` rounds."""

Turn = Callable[[Case], float]
"""A function that measures a case: the seconds of a call, at the slowest rank."""


def measure(results: Results, part: Part, *, quick: bool) -> None:
    """Measure every case of one part with all available contestants."""
    environment = {
        "SLACKLINE_RAILS": part.rails,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    without_mpi = openmpi.missing()
    with ExitStack() as stack:
        group = stack.enter_context(Ranks(Performer, part.ranks, environment=environment))
        mpi = None
        if without_mpi is None:
            mpi = stack.enter_context(openmpi.on_this_host(part.ranks, part.rails, source=SOURCE))
            mpi.greet()
        turns = _turns(group, mpi)
        for case in cases(part, quick=quick):
            group.ask("prepare", case.operation, case.count)
            samples = _play(case, turns, quick=quick)
            results.record(Cell(part=part, case=case), samples, without_mpi)
        group.ask("close")


def _turns(group: Ranks, mpi: Programs | None) -> dict[str, Turn]:
    """Return the turns of all contestants, by name."""

    def by_ranks(backend: str) -> Turn:
        return lambda case: float(max(group.ask("turn", backend, case.calls, case.warm_up)))

    def by_mpi(mpi: Programs) -> Turn:
        numbers = {name: number for number, name in enumerate(OPERATIONS)}

        def turn(case: Case) -> float:
            used = mpi.turn(case.count, case.calls, case.warm_up, numbers[case.operation])
            return max(usage.seconds for usage in used)

        return turn

    turns = {backend: by_ranks(backend) for backend in ("slackline", "gloo", EMPTY)}
    return turns if mpi is None else {**turns, "openmpi": by_mpi(mpi)}


def _play(case: Case, turns: dict[str, Turn], *, quick: bool) -> dict[str, list[float]]:
    """Run the rounds of a case, with reversed turns in every other round; return the seconds."""
    rounds, seconds, least = ROUNDS, CELL_SECONDS, LEAST_ROUNDS
    if quick:
        rounds, seconds, least = QUICK_ROUNDS, QUICK_CELL_SECONDS, 1
    names = [name for name in turns if name != EMPTY or case.has_empty_calls]
    samples: dict[str, list[float]] = {name: [] for name in names}
    started = time.monotonic()
    for number in range(rounds):
        if number >= least and time.monotonic() - started > seconds:
            break
        for name in in_turns(names, number):
            samples[name].append(turns[name](case))
    return samples


def main() -> None:
    options = parse(
        "latency of the collectives: slackline, gloo and OpenMPI",
        parts=[part.name for part in PARTS],
    )
    machine = describe_machine()
    results = Results()
    if options.part is not None:
        parts = [part for part in PARTS if part.name == options.part]
    else:
        parts = list(QUICK_PARTS if options.quick else PARTS)
    for part in parts:
        measure(results, part, quick=options.quick)
    report = Report(machine=machine, rows=results.rows(), targets=results.targets())
    report.print(results.tables(), options, notes=results.notes())


if __name__ == "__main__":
    main()
