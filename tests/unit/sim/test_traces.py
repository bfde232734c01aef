"""Every plan on drawn fabrics, with drawn faults, has the recorded trace, event for event.

The traces of barrier-chain and all_reduce-flat-tree were recorded from the native machine itself,
all others from a simulator in Python that executed the same model, so that their digests also check
the native machine against another implementation. `python test_traces.py` prints the digests; a
digest may change with the model only.
"""

import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest
from drawn_fabrics import MS, US, drawn_fabric, made

from slackline.errors import LinkError, PeerError, TimeoutError
from slackline.faults import Plan, parse_all
from slackline.plan.collective import PLANS, Collective, generate, hierarchical
from slackline.plan.pipeline import Scenario, one_f_one_b
from slackline.sim import (
    CollectiveRun,
    Layer,
    Operation,
    Symbols,
    simulate_alike,
    simulate_collective,
    simulate_hybrid,
    simulate_training,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "simulated-traces.txt"
SEEDS = 12
NETWORK_FAULTS = (
    "link {a}-{b} delay 30us jitter 20us",
    "link {a}>{b} delay 100us from 20us for 200us",
    "link {a}-{b} loss 3% duplicate 2%",
    "link {a}-{b} corrupt 4% reorder 10%",
    "link {a}-{b} rate 300Mbit",
    "link {a}-{b} down from 10us for 300us",
    "nic {a}.0 rate 200Mbit from 5us for 500us",
    "nic {b}.0 down from 30us for 100us",
    "nic {a}.0 flap 50us for 2ms",
)
RANK_FAULTS = (
    "rank {a} slow 1.3x",
    "rank {a} slow 2x from 7us for 90us",
    "rank {b} slow 3.7x from 1us for 11us",
    "rank {b} stop from 20us for 150us",
)


def drawn_faults(random: Random, hosts: int, ranks: int) -> Plan:
    texts = []
    for _ in range(random.randint(0, 3)):
        if random.random() < 0.6 and hosts > 1:
            a, b = random.sample(range(hosts), 2)
            texts.append(random.choice(NETWORK_FAULTS).format(a=a, b=b))
        elif ranks > 1:
            a, b = random.sample(range(ranks), 2)
            texts.append(random.choice(RANK_FAULTS).format(a=a, b=b))
    return parse_all(texts)


def told(run: CollectiveRun) -> str:
    figures = run.ended_ps, run.messages, run.sent_bytes, run.received_bytes, run.resent_packets
    return repr((figures, run.events, [dict(values) for values in run.values], run.frames))


def collective(seed: int, kind: Collective, name: str) -> str:
    random = Random(f"{seed} {kind.label} {name}")
    plan = made(kind, name, random.randint(2, 6))
    operation = Operation(
        plan=plan,
        count=random.randint(0, 3000),
        segment_bytes=random.choice((64, 256, 4096)),
        onset=random.randint(0, 3),
    )
    fabric = drawn_fabric(random, random.randint(1, plan.members))
    placement = tuple(random.randrange(len(fabric.hosts)) for _ in range(plan.members))
    run = simulate_collective(
        operation,
        fabric,
        placement=placement,
        starts_ps=tuple(random.choice((0, random.randint(0, 10**8))) for _ in placement),
        faults=drawn_faults(random, len(fabric.hosts), plan.ranks),
        arithmetic=Symbols(),
        record=True,
        limit_ps=100 * MS,
    )
    return told(run)


def training(seed: int) -> str:
    random = Random(f"{seed} training")
    ranks = random.randint(2, 5)
    name = random.choice(("ring", "mesh", "direct", "star", "torus"))
    plan = generate(Collective.ALL_REDUCE, name, ranks)
    fabric = drawn_fabric(random, plan.members)
    layers = [
        Layer(
            forward_ps=random.randint(0, 50) * US,
            backward_ps=random.randint(0, 50) * US,
            gradient_bytes=4 * random.randint(0, 3000),
            optimizer_ps=random.randint(0, 5) * US,
        )
        for _ in range(random.randint(1, 5))
    ]
    run = simulate_training(
        layers,
        fabric,
        lambda nbytes: Operation(plan=plan, count=nbytes // 4, segment_bytes=2048),
        steps=random.randint(2, 3),
        policy=random.choice(("overlap", "buckets", "after")),
        group_bytes=random.choice((0, 8000)),
        faults=drawn_faults(random, len(fabric.hosts), plan.ranks),
    )
    return repr((run.backward_ps, run.ended_ps, run.exposed_ps, run.sent_bytes, run.events))


def hybrid(seed: int) -> str:
    random = Random(f"{seed} hybrid")
    stages, microbatches, replicas = random.randint(2, 4), random.randint(2, 5), 2
    ranks = stages * replicas
    fabric = drawn_fabric(random, random.randint(stages, ranks))
    run = simulate_hybrid(
        one_f_one_b(stages, microbatches),
        Scenario.uniform(stages, microbatches, (20 * US, 20 * US, 20 * US)),
        fabric,
        replicas=replicas,
        message_bytes=tuple(random.randint(0, 20_000) for _ in range(stages - 1)),
        gradient_bytes=tuple(random.randint(0, 60_000) for _ in range(stages)),
        order=random.choice(("fixed", "ready")),
        placement=tuple(rank % len(fabric.hosts) for rank in range(ranks)),
        faults=drawn_faults(random, len(fabric.hosts), ranks),
    )
    spans = [[[(s.start_ps, s.end_ps) for s in rank] for rank in p.spans] for p in run.pipelines]
    return repr((spans, run.reduced_ps, run.makespan_ps, run.sent_bytes, run.events))


def alike(seed: int) -> str:
    random = Random(f"{seed} alike")
    hosts, per_host = random.randint(2, 5), random.randint(1, 3)
    plan = hierarchical(hosts, per_host)
    fabric = drawn_fabric(random, 1)
    operation = Operation(plan=plan, count=plan.chunks * 16 * random.randint(1, 40))
    return told(simulate_alike(operation, fabric, ranks_per_host=per_host))


def cases() -> Iterator[tuple[str, Callable[[int], str]]]:
    """Yield the name of each kind of case and the function that runs one by its seed."""
    for kind, name in (key for key, row in PLANS.items() if not row.by_host):
        yield f"{kind.label}-{name}", lambda seed, k=kind, n=name: collective(seed, k, n)
    yield "training", training
    yield "hybrid", hybrid
    yield "alike", alike


def trace(run: Callable[[int], str], seed: int) -> str:
    """Return the digest of a run's trace, or the error with which it ended."""
    try:
        return sha256(run(seed).encode()).hexdigest()[:16]
    except (LinkError, PeerError, TimeoutError) as error:
        return str(error)


@pytest.mark.parametrize(("name", "run"), list(cases()), ids=[name for name, _ in cases()])
def test_traces_are_those_recorded(name: str, run: Callable[[int], str]) -> None:
    recorded = [line.split(": ", 1) for line in GOLDEN.read_text().splitlines()]
    wanted = {key: value for key, value in recorded if key.rsplit(" ", 1)[0] == name}
    assert len(wanted) == SEEDS
    assert {f"{name} {seed}": trace(run, seed) for seed in range(SEEDS)} == wanted


if __name__ == "__main__":
    for name, run in cases():
        for seed in range(SEEDS):
            sys.stdout.write(f"{name} {seed}: {trace(run, seed)}\n")
