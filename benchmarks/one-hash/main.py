"""Compare the hashes of one training on several numbers of ranks, and measure what they cost."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _harness.machine import describe_machine
from _harness.options import parse
from _harness.ranks import Ranks
from _harness.report import Report
from _harness.rounds import in_turns
from cases import (
    ACCUMULATED,
    BATCH,
    CERTIFICATE,
    DDP,
    FULL,
    HASHED,
    HASHES,
    PARTS,
    PRICE,
    PRICED,
    QUICK,
    SAMPLES,
    TREE,
    UNHASHED,
    VIRTUAL_RANKS,
    Lengths,
    Training,
)
from rank import start_rank
from results import Price, Results

COMMON = {"OMP_NUM_THREADS": "1"}


def hashes(how: Lengths, results: Results) -> None:
    """Train in each way on each number of ranks; record the hashes."""
    for size in how.ranks:
        with Ranks(start_rank, size, environment=COMMON) as ranks:
            for training in how.trainings:
                ranks.ask("prepare", training, (TREE,), VIRTUAL_RANKS)
                ranks.ask("train", TREE, how.steps)
                results.hashes[training, size] = set(ranks.ask("hash"))
            ranks.ask("close")


def price(how: Lengths, results: Results) -> None:
    """Time steps in turns: in the tree, accumulated plainly, and by DDP over gloo."""
    training = Training(PRICED, "fp32", "fused")
    for size in how.priced:
        with Ranks(start_rank, size, environment=COMMON | {"SLACKLINE_RAILS": "tcp"}) as ranks:
            even = {size} if BATCH[PRICED] % size == 0 else set()
            for virtual_ranks in sorted({*even, VIRTUAL_RANKS}):
                # DDP computes a rank's part at once, as a rank with one virtual rank does.
                ways = (TREE, ACCUMULATED, DDP) if virtual_ranks == size else (TREE, ACCUMULATED)
                ranks.ask("prepare", training, ways, virtual_ranks)
                found = {way: Price() for way in ways}
                for way in ways:
                    ranks.ask("train", way, 4)  # Gradients move to their final order in memory.
                for number in range(how.rounds):
                    for way in in_turns(ways, number):
                        before = sum(ranks.ask("sent"))
                        times = ranks.ask("train", way, how.turn)
                        found[way].seconds.append(max(seconds for seconds, _ in times))
                        found[way].processor.append(sum(used for _, used in times))
                        found[way].sent.append((sum(ranks.ask("sent")) - before) / how.turn)
                results.prices[size, virtual_ranks] = found
            ranks.ask("close")


def certificate(how: Lengths, results: Results) -> None:
    """Time steps in turns with telemetry: with a hash of each step's state, and without."""
    training, ways = Training(PRICED, "fp32", "fused"), (HASHED, UNHASHED)
    for size in how.certified:
        with Ranks(start_rank, size, environment=COMMON) as ranks:
            ranks.ask("prepare", training, ways, VIRTUAL_RANKS)
            found = {way: Price() for way in ways}
            for way in ways:
                ranks.ask("train", way, 4)
            for number in range(how.rounds):
                for way in in_turns(ways, number):
                    times = ranks.ask("train", way, how.turn)
                    found[way].seconds.append(max(seconds for seconds, _ in times))
                    found[way].processor.append(sum(used for _, used in times))
            results.certified[size] = found
            ranks.ask("close")


def samples(how: Lengths, results: Results) -> None:
    """Time steps of one rank whose batch is divided into more and more virtual ranks."""
    training = Training(PRICED, "fp32", "fused")
    with Ranks(start_rank, 1, environment=COMMON) as ranks:
        times: dict[int, list[float]] = {count: [] for count in how.divided}
        for number in range(max(2, how.rounds // 3)):
            for count in in_turns(how.divided, number):
                ranks.ask("prepare", training, (TREE,), count)
                ranks.ask("train", TREE, 1)
                times[count].append(ranks.ask("train", TREE, how.turn)[0][0])
        results.divided = {count: median(each) for count, each in times.items()}
        ranks.ask("close")


def main() -> None:
    options = parse("one hash on any number of ranks, and its price", parts=PARTS)
    machine, results = describe_machine(), Results()
    how = QUICK if options.quick else FULL
    measured = {HASHES: hashes, PRICE: price, CERTIFICATE: certificate, SAMPLES: samples}
    for part in PARTS:
        if options.part in (None, part):
            measured[part](how, results)
        else:
            results.skipped[part] = "not asked for"
    report = Report(machine=machine, rows=results.rows(), targets=results.targets())
    report.print(results.tables(), options)


if __name__ == "__main__":
    main()
