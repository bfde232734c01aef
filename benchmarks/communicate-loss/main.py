"""Measure the loss that a training reaches, and its step, with gradients as fp32 and as bf16.

Both trainings begin with the same weights and see the same data, in the same four ranks, in turns.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
# The models are imported from the examples.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from _harness.machine import describe_machine, sent_bytes
from _harness.network import Network
from _harness.options import parse
from _harness.ranks import Conductor, LabRanks, Ranks
from _harness.report import Report
from _harness.rounds import in_turns
from cases import (
    CHUNK,
    COST,
    FULL,
    GPT,
    MODELS,
    NETWORKS,
    PARTS,
    QUICK,
    RANKS,
    SIZES_MB,
    TYPES,
    Lengths,
)
from rank import start_rank
from results import Reached, Results, Steps

from slackline.errors import UsageError
from slackline.lab import Lab, LabOptions

COMMON = {"OMP_NUM_THREADS": "1"}


@contextmanager
def ranks_on(network: Network) -> Iterator[Conductor]:
    """Start the ranks of a network; raise UsageError if this machine cannot provide the network."""
    if network.rate_bps is None:
        with Ranks(start_rank, network.ranks, environment=COMMON) as ranks:
            yield ranks
        return
    # The hosts of a lab share this machine's memory, but represent machines that do not share any.
    environment = COMMON | {"SLACKLINE_RAILS": "tcp"}
    options = LabOptions(hosts=network.ranks, rate=network.rate_bps)
    with Lab(options) as lab, LabRanks(start_rank, lab, environment=environment) as ranks:
        yield ranks


def train(ranks: Conductor, model: str, how: Lengths, results: Results) -> None:
    """Train a model from each seed with both types; record the losses that it reaches."""
    for seed in how.seeds:
        ranks.ask("prepare", model, seed)
        losses: dict[str, list[float]] = {kind: [] for kind in TYPES}
        for number, first in enumerate(range(0, how.of(model), CHUNK)):
            count = min(CHUNK, how.of(model) - first)
            for kind in in_turns(TYPES, number):
                by_rank = ranks.ask("train", kind, first, count)
                losses[kind] += [fmean(step) for step in zip(*by_rank, strict=True)]
        for kind in TYPES:
            held_out, accuracy = ranks.ask("held_out", kind)[0]
            results.reached[model, seed, kind] = Reached(
                losses=losses[kind], held_out=held_out, accuracy=accuracy
            )
        check(ranks)


def step(ranks: Conductor, network: Network, how: Lengths, results: Results) -> None:
    """Measure steps of the GPT on a network; record their times and the bytes on the wire."""
    ranks.ask("prepare", GPT, how.seeds[0])
    for kind in TYPES:
        ranks.ask("train", kind, 0, 2)  # Gradients move to their final order in memory.
    found, first = Steps(), 2
    for number in range(how.rounds):
        for kind in in_turns(TYPES, number):
            before = 0 if network.one_host else wire_bytes(ranks)
            found.seconds[kind].append(max(ranks.ask("turn", kind, first, how.steps)))
            if not network.one_host:
                found.sent[kind].append((wire_bytes(ranks) - before) / (how.steps + 1))
        first += how.steps + 1
    check(ranks)
    results.steps[network.name] = found


def wire_bytes(ranks: Conductor) -> int:
    """Return the bytes that the interfaces of all hosts have sent so far."""
    return sum(sent_bytes(pid, "eth0") for pid in ranks.pids)


def check(ranks: Conductor) -> None:
    """Raise ArithmeticError unless every rank has the same parameters."""
    digests = ranks.ask("digests")
    if any(other != digests[0] for other in digests):
        raise ArithmeticError(f"the ranks' parameters differ: {digests}")


def convert(how: Lengths, results: Results) -> None:
    """Time the conversion of gradients in one process."""
    with Ranks(start_rank, 1, environment=COMMON) as ranks:
        for size in SIZES_MB:
            rounding, widening = ranks.ask("convert", size * 10**6, how.repeats)[0]
            results.converted[size] = median(rounding), median(widening)
        ranks.ask("close")


def main() -> None:
    options = parse("the loss and the step with gradients as fp32 and as bf16", parts=PARTS)
    machine, results = describe_machine(), Results()
    how = QUICK if options.quick else FULL
    chosen = set(PARTS) if options.part is None else {options.part}
    for part in PARTS:
        if part not in chosen:
            results.skipped[part] = "not asked for"
    if options.quick and options.part is None:
        # A lab takes longer to make than a quick run has.
        for network in NETWORKS:
            if not network.one_host:
                chosen.remove(network.name)
                results.skipped[network.name] = "left out by --quick"
    models = [model for model in MODELS if model in chosen]
    if models:
        with Ranks(start_rank, RANKS, environment=COMMON) as ranks:
            for model in models:
                train(ranks, model, how, results)
            ranks.ask("close")
    for network in NETWORKS:
        if network.name in chosen:
            try:
                with ranks_on(network) as ranks:
                    step(ranks, network, how, results)
                    ranks.ask("close")
            except UsageError as error:
                results.skipped[network.name] = str(error)
    if COST in chosen:
        convert(how, results)
    report = Report(machine=machine, rows=results.rows(), targets=results.targets())
    report.print(results.tables(), options, notes=results.notes())


if __name__ == "__main__":
    main()
