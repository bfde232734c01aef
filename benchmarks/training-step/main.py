"""Measure a training step: PCCO, DDP and FSDP2 over slackline, DDP and FSDP2 over gloo, and alone.

PCCO is the method of slackline.overlap. Models that compute are trained, on one host and over
networks of a lab. All contestants of a cell (a model on a network) are alive in the same processes
and take turns.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
# Two of the models are imported from the examples.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from _harness.machine import describe_machine
from _harness.options import Options, parse
from _harness.ranks import Conductor, LabRanks, Ranks
from _harness.report import Report
from _harness.rounds import in_turns
from cases import (
    BACKENDS,
    CELLS,
    PARTS,
    PCCO,
    Cell,
    Choice,
    Contestant,
    Lengths,
    Network,
    candidates,
    cells_of,
    contestants,
    fastest,
    lengths,
    with_settings,
)
from rank import start_rank
from results import Results, slowest
from targets import targets

from slackline.errors import UsageError
from slackline.lab import Lab, LabOptions

MOST_SETTLING = 40
"""The questions after which a trial must have ended: 400 steps, and a trial has at most 114."""


@contextmanager
def ranks_on(network: Network) -> Iterator[Conductor]:
    """Start the ranks of a network; raise UsageError if this machine cannot provide the network."""
    environment = {"OMP_NUM_THREADS": "1"}
    if network.rate_bps is None:
        environment["GLOO_SOCKET_IFNAME"] = "lo"
        with Ranks(start_rank, network.ranks, environment=environment) as ranks:
            yield ranks
        return
    # The hosts of a lab share this machine's memory, but represent machines that do not share any.
    environment |= {"SLACKLINE_RAILS": "tcp", "GLOO_SOCKET_IFNAME": "eth0"}
    options = LabOptions(hosts=network.ranks, rate=network.rate_bps)
    with Lab(options) as lab, LabRanks(start_rank, lab, environment=environment) as ranks:
        yield ranks


def select(
    ranks: Conductor, found: Sequence[Contestant], how: Lengths, *, present: Sequence[Contestant]
) -> Contestant:
    """Measure some contestants in separate rounds; return the fastest and drop the others.

    The ranks have made the contestants in `present` already.
    """
    for contestant in found:
        if contestant not in present:
            ranks.ask("add", contestant)
    if len(found) == 1:
        return found[0]
    times: dict[Contestant, list[float]] = {contestant: [] for contestant in found}
    for number in range(how.selection_rounds):
        for contestant in in_turns(found, number):
            usages = ranks.ask("turn", contestant, how.warm_up, how.steps)
            times[contestant].append(slowest(usages))
    best = fastest(times)
    ranks.ask("drop", [contestant for contestant in found if contestant != best])
    return best


def best_ddp(
    ranks: Conductor, backend: str, parameter_bytes: int, how: Lengths, *, quick: bool
) -> Contestant:
    """Return DDP over a backend with its best bucket size and, at that size, best settings."""
    sizes = candidates(backend, parameter_bytes, quick=quick)
    best = select(ranks, sizes, how, present=())
    batched_copy: bool = ranks.ask("batched_copy")[0]
    several = with_settings(best, batched_copy=batched_copy, few=how.selection_rounds == 1)
    return select(ranks, several, how, present=[best])


def settle(ranks: Conductor) -> Choice:
    """Train with PCCO until its trial has ended; return the choice of the trial.

    Raises RuntimeError if the trial does not end, for example because the environment has
    SLACKLINE_GROUP_BYTES.
    """
    for _ in range(MOST_SETTLING):
        choice: Choice | None = ranks.ask("settle", PCCO)[0]
        if choice is not None:
            return choice
    raise RuntimeError("PCCO's trial has not ended: is SLACKLINE_GROUP_BYTES set?")


def compare(
    ranks: Conductor, cell: Cell, contestants: Sequence[Contestant], how: Lengths, results: Results
) -> None:
    """Measure every contestant with one model on one network, in turns; record the results."""
    for number in range(how.rounds):
        for contestant in in_turns(contestants, number):
            usages = ranks.ask("turn", contestant, how.warm_up, how.steps)
            results.record(cell, contestant, usages)
    for contestant in contestants:
        results.record_calls(cell, contestant, ranks.ask("calls", contestant))


def check(ranks: Conductor, choice: Choice) -> None:
    """Raise ArithmeticError unless every rank has the same parameters.

    Raises RuntimeError if PCCO's latest trial has not made the choice that it had been measured
    with.
    """
    later = ranks.ask("chosen", PCCO)[0]
    if later != choice:
        raise RuntimeError(f"PCCO was measured with {choice}, and then another trial chose {later}")
    digests = ranks.ask("check")
    for contestant, digest in digests[0].items():
        if any(other[contestant] != digest for other in digests):
            raise ArithmeticError(f"{contestant.name}: the ranks' parameters differ")


def play(ranks: Conductor, cell: Cell, results: Results, options: Options) -> None:
    """Measure one model on one network: choose DDP's settings, then compare all contestants."""
    parameter_bytes = ranks.ask("prepare", cell.model)[0]
    ranks.ask("add", PCCO)
    how = lengths(slowest(ranks.ask("turn", PCCO, 1, 2)), quick=options.quick)
    choice = settle(ranks)
    results.record_choice(cell, PCCO, choice)
    best = [
        best_ddp(ranks, backend, parameter_bytes, how, quick=options.quick) for backend in BACKENDS
    ]
    others = contestants(cell.model)
    for contestant in others:
        ranks.ask("add", contestant)
    compare(ranks, cell, [PCCO, *best, *others], how, results)
    check(ranks, choice)


def measure(results: Results, cells: Sequence[Cell], options: Options) -> None:
    """Measure some cells, and record the reason why each of the others is left out."""
    for network, group in groupby(cells, key=lambda cell: cell.network):
        unmeasured = list(group)
        try:
            with ranks_on(network) as ranks:
                while unmeasured:
                    play(ranks, unmeasured[0], results, options)
                    del unmeasured[0]
                ranks.ask("close")
        except UsageError as error:
            for cell in unmeasured:
                results.skip(cell, str(error))
    for cell in CELLS:
        if cell not in cells:
            results.skip(cell, "left out by --quick" if options.part is None else "not asked for")


def main() -> None:
    options = parse(
        "a training step: PCCO, DDP and FSDP2 over slackline and gloo",
        parts=PARTS,
        takes_measured=True,
    )
    results = Results()
    machine = describe_machine()
    if options.measured:
        for path in options.measured:
            results.load(json.loads(path.read_text()))
        for cell in CELLS:
            if cell not in results.cells():
                results.skip(cell, "in none of the files")
    else:
        measure(results, cells_of(options.part, quick=options.quick), options)
    report = Report(machine=machine, rows=results.rows(), targets=targets(results))
    report.print([results.table()], options, notes=results.notes())


if __name__ == "__main__":
    main()
