"""Tests of rings of circuits whose operations start at every rank: exact sums, and no deadlock."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from lossy_driving import CircuitRing, Faults
from mutating import Mutant, make
from ring_driving import DTYPES, Ring, Tensors, agree, sent_alike, tensors

from slackline.circuit import RingOptions, Verilog, cached_ring
from slackline.wire import DType

# The limit leaves time to compile a circuit on a busy machine.
pytestmark = [pytest.mark.simulates, pytest.mark.timeout(300)]

OPTIONS = RingOptions(lanes=1, slots=2, payload_bytes=128, operations=8)
Open = Callable[..., Any]


def opener(verilog: Verilog, stack: ExitStack) -> Open:
    """Return a function that opens simulations of one circuit with random stalls on all streams."""
    from slackline.circuit import Simulation

    seeds = iter(range(1, 10_000, 10))

    def simulate(stall: float = 0, latency: int = 0) -> Simulation:
        simulation = stack.enter_context(Simulation(verilog))
        simulation.memory_latency(latency)
        seed = next(seeds)
        for stream in range(3):
            simulation.stall(stream, stall, seed + stream)
        for stream in range(5):
            simulation.stall(stream, stall, seed + 3 + stream, output=True)
        return simulation

    return simulate


@pytest.fixture(scope="module")
def verilog() -> Verilog:
    return cached_ring(OPTIONS)


@pytest.fixture
def simulate(verilog: Verilog) -> Iterator[Open]:
    with ExitStack() as stack:
        yield opener(verilog, stack)


def mixed(rng: np.random.Generator, ranks: int) -> list[Tensors]:
    """Return as many operations as can be open: a rotating tensor, others with random starts."""
    most = OPTIONS.payload_bytes // 4
    found: list[Tensors] = []
    for tag in range(OPTIONS.operations - ranks + 1):
        dtype, count = DTYPES[int(rng.integers(4))], int(rng.integers(1, 5 * most))
        how = {"start": int(rng.integers(ranks))} if tag else {"rotates": True}
        found.append(tensors(rng, OPTIONS, ranks, dtype, count, tag, **how))
    return found


@pytest.mark.parametrize(
    ("ranks", "stall", "latency"),
    [
        (2, 0, 300),
        (3, 0.3, 20),
        pytest.param(5, 0, 300, marks=pytest.mark.slow),
        pytest.param(2, 0.3, 20, marks=pytest.mark.slow),
        pytest.param(3, 0, 300, marks=pytest.mark.slow),
        pytest.param(4, 0, 300, marks=pytest.mark.slow),
        pytest.param(4, 0.3, 20, marks=pytest.mark.slow),
        pytest.param(5, 0.3, 20, marks=pytest.mark.slow),
    ],
)
def test_circuits_and_twins_send_the_same_wherever_operations_open(
    simulate: Open, ranks: int, stall: float, latency: int
) -> None:
    rng = np.random.default_rng(ranks)
    ring = Ring(["circuit"] * ranks, OPTIONS, lambda: simulate(stall, latency))
    twins = Ring(["twin"] * ranks, OPTIONS)
    for _ in range(4):
        operations = mixed(rng, ranks)
        agree(ring, twins, operations, rng)
    sent_alike(ring, twins)


@pytest.mark.parametrize(
    "ranks",
    [pytest.param(ranks, marks=[pytest.mark.slow] * (ranks != 3)) for ranks in (2, 3, 4, 5)],
)
def test_what_wires_do_to_frames_of_a_rotating_ring_changes_no_bit(
    simulate: Open, ranks: int
) -> None:
    rng = np.random.default_rng(10 + ranks)
    simulations = [simulate(0.1, 20) for _ in range(ranks)]
    faults = Faults(lost=0.1, doubled=0.1, late=0.2, damaged=0.1)
    ring = CircuitRing(simulations, OPTIONS, faults, rng)
    assert ring.run(mixed(rng, ranks), turns=5000) == ""
    assert ring.total("resent") > 0
    assert ring.total("unexpected") == 0


def crowded(simulate: Open, ranks: int) -> str:
    """Fill the ring from every rank with all operations that it takes; return the first error."""
    rng = np.random.default_rng(ranks)
    operations = [
        tensors(rng, OPTIONS, ranks, DType.FLOAT32, 200, tag, start=tag % ranks)
        for tag in range(OPTIONS.operations)
    ]
    ring = CircuitRing([simulate() for _ in range(ranks)], OPTIONS, Faults(), rng)
    # The limit is twice the number of turns that the ring takes.
    return ring.run(operations, turns=500)


@pytest.mark.parametrize(
    "ranks",
    [pytest.param(ranks, marks=[pytest.mark.slow] * (ranks != 3)) for ranks in (2, 3, 4, 5)],
)
def test_a_ring_that_is_filled_from_every_rank_goes_on(simulate: Open, ranks: int) -> None:
    assert crowded(simulate, ranks) == ""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [3, 5])
def test_without_a_place_left_free_it_would_stop(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slackline.circuit import QueuedRingNic, convert

    window = ("ring._window", ("RingWindow",), ("ring._transmitter",))
    make(Mutant(*window, "used + 1 < slots", "used < slots", str), monkeypatch)
    with ExitStack() as stack:
        found = crowded(opener(convert("ring", QueuedRingNic(OPTIONS)), stack), ranks)
    assert found.startswith("rank 0 completed ")
