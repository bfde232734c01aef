"""The cases of the campaign: trainings whose hashes must not depend on ranks, rails and faults.

0 to 107     each training on each number of ranks, over shared memory
108 to 139   trainings over other rails, through an aggregation node, and in other groups of
             gradients, in pairs
140          a training of 1,000 steps in a lab, with 20 faults of its network
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from _harness.aggregation_node import aggregation_node
from _harness.ranks import Ranks
from cases import FULL, MODELS, OPTIMIZERS, PRECISIONS, TREE, VIRTUAL_RANKS, Training
from rank import start_rank

ROOT = Path(__file__).resolve().parents[2]
STEPS = 100
NODE = "aggregation node"
"""In place of rails: the sums of 2 and 8 ranks are those of `slackline aggregate`."""
FACTORS: dict[str, tuple[Any, ...]] = {
    "model": MODELS,
    "precision": PRECISIONS,
    "optimizer": OPTIMIZERS,
    "size": (2, 3, 5, 8),
    "rails": ("tcp", "udp", "shm", NODE),
    "group_bytes": ("0B", "64KiB", "1MiB"),
}
"""What the paired cases vary."""
PAIRED = 32
FAULTS, FAULTY_STEPS, FAULTY_RANKS = 20, 1000, 3


class Case(NamedTuple):
    """A training on a number of ranks."""

    training: Training
    size: int
    rails: str = "shm"
    group_bytes: str = ""


def case(seed: int) -> Case:
    """Return the case of a seed below TOTAL - 1."""
    if seed < len(EVERY):
        return EVERY[seed]
    return paired()[seed - len(EVERY)]


@cache
def paired() -> tuple[Case, ...]:
    """Return cases that contain each pair of values of two factors."""
    draw = random.Random(0)
    missing = {
        (one, mine, other, theirs)
        for one, other in combinations(FACTORS, 2)
        for mine in FACTORS[one]
        for theirs in FACTORS[other]
    }

    def pairs(values: dict[str, Any]) -> set[tuple[str, Any, str, Any]]:
        return {(one, values[one], other, values[other]) for one, other in combinations(values, 2)}

    chosen = []
    for _ in range(PAIRED):
        rivals = [
            {name: draw.choice(values) for name, values in FACTORS.items()} for _ in range(300)
        ]
        fresh = [each for each in rivals if each not in chosen]
        best = max(fresh, key=lambda each: len(pairs(each) & missing))
        missing -= pairs(best)
        chosen.append(best)
    if missing:
        raise ValueError(f"{PAIRED} cases leave out {len(missing)} pairs of values")
    return tuple(
        Case(
            Training(each["model"], each["precision"], each["optimizer"]),
            each["size"],
            each["rails"],
            each["group_bytes"],
        )
        for each in chosen
    )


class _ThisHost:
    """The host of all ranks of a case, as the place of an aggregation node."""

    def address(self, host: int, /) -> str:
        return "127.0.0.1"

    def command(self, host: int, argv: Sequence[str], /) -> list[str]:
        return list(argv)


@contextmanager
def carriers(found: Case) -> Iterator[dict[str, str]]:
    """Yield the variables of a case's rails, or of its aggregation node, which runs meanwhile."""
    if found.rails != NODE:
        yield {"SLACKLINE_RAILS": found.rails}
        return
    with aggregation_node(_ThisHost(), 0, workers=found.size) as address:
        yield {"SLACKLINE_AGGREGATOR": address, "SLACKLINE_PLAN": "star"}


def trained(found: Case) -> set[str]:
    """Train; return the hashes of the ranks."""
    environment = {"OMP_NUM_THREADS": "1"}
    if found.group_bytes:
        environment["SLACKLINE_GROUP_BYTES"] = found.group_bytes
    with (
        carriers(found) as variables,
        Ranks(start_rank, found.size, environment={**environment, **variables}) as ranks,
    ):
        ranks.ask("prepare", found.training, (TREE,), VIRTUAL_RANKS)
        ranks.ask("train", TREE, STEPS)
        hashes = set(ranks.ask("hash"))
        ranks.ask("close")
    return hashes


@cache
def alone(training: Training) -> set[str]:
    """Return the hash of a training on one rank, in a set."""
    return trained(Case(training, 1))


def judged(seed: int) -> str:
    """Run the case of a seed; return a sentence if it has another hash than one rank."""
    if seed == TOTAL - 1:
        return with_faults()
    found = case(seed)
    hashes = alone(found.training)
    if found.size > 1:
        hashes = hashes | trained(found)
    return "" if len(hashes) == 1 else f"{found} has the hashes {', '.join(sorted(hashes))}"


def faults() -> list[str]:
    """Return the drawn faults of the long training, one after the other."""
    draw = random.Random(1)
    found = []
    for number in range(FAULTS):
        host, other = draw.sample(range(FAULTY_RANKS), 2)
        what = draw.choice(
            [
                f"nic {host}.{draw.randint(0, 1)} down",
                f"link {host}>{other} loss {draw.randint(1, 5)}%",
                f"link {host}-{other} delay {draw.randint(1, 10)}ms jitter 1ms",
                f"link {host}-{other} reorder {draw.randint(1, 20)}%",
                f"link {host}>{other} corrupt 1%",
                f"nic {host}.{draw.randint(0, 1)} rate 20Mbit",
            ]
        )
        found.append(f"{what} from {1500 * number + 500}ms for 1s")
    return found


def with_faults() -> str:
    """Train in a lab with faults of its network; compare with one rank without faults."""
    options = ["--lab", "--hosts", str(FAULTY_RANKS), "--nics", "2"]
    options += [word for fault in faults() for word in ("--fault", fault)]
    hashes = {_printed("--ranks", "1"), _printed(*options)}
    return "" if len(hashes) == 1 else f"{FAULTY_STEPS} steps have the hashes {', '.join(hashes)}"


def _printed(*options: str) -> str:
    """Return the hash that the example prints under `slackline run`."""
    example = [str(ROOT / "examples" / "one_hash.py"), "--steps", str(FAULTY_STEPS)]
    command = [str(Path(sys.executable).with_name("slackline")), "run", *options, *example]
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(rf"{FAULTY_STEPS} steps: .*hash ([0-9a-f]{{32}})$", done.stdout, re.M)
    if found is None:
        return f"none (status {done.returncode}: {done.stderr[-300:]})"
    return found[1]


EVERY = tuple(Case(training, size) for training in FULL.trainings for size in FULL.ranks)
TOTAL = len(EVERY) + PAIRED + 1
