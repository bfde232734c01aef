"""Tests that the checks of a ring find a NIC that is wrong in one place."""

from contextlib import ExitStack

import numpy as np
import pytest
from lossy_driving import CircuitRing, Faults
from mutating import Mutant, make
from ring_driving import DTYPES, tensors

from slackline.circuit import RingOptions, Verilog, kept_ring

# The limit leaves time to compile a circuit on a busy machine.
pytestmark = [pytest.mark.simulates, pytest.mark.timeout(300)]

OPTIONS = RingOptions(lanes=1, slots=2, payload_bytes=128, operations=8)


def ring_fails(made: Verilog | None = None) -> str:
    """Run a ring over wires with faults; return the first error, or an empty string."""
    from slackline.circuit import QueuedRingNic, Simulation, convert

    verilog = made or convert("ring", QueuedRingNic(OPTIONS))
    rng = np.random.default_rng(5)
    operations = [
        tensors(rng, OPTIONS, 3, DTYPES[k % 4], int(rng.integers(1, 64)), k) for k in range(8)
    ]
    with ExitStack() as stack:
        simulations = [stack.enter_context(Simulation(verilog)) for _ in operations[:3]]
        faults = Faults(lost=0.15, doubled=0.3, late=0.3)
        ring = CircuitRing(simulations, OPTIONS, faults, rng)
        found = ring.run(operations, turns=1500)
        return found or ("frames were taken twice" if ring.total("unexpected") else "")


MUTANTS = {
    "bitmap": Mutant(
        "_ring_receiver",
        ("RingReceiver",),
        ("_ring",),
        "(distance < self.options.slots) & ~arrived",
        "~arrived",
        ring_fails,
    ),
    "credit": Mutant(
        "_ring_window",
        ("RingWindow",),
        ("_ring_transmitter",),
        "used < slots",
        "used <= slots",
        ring_fails,
    ),
    "rounding": Mutant(
        "_ring_joiner",
        ("RingJoiner",),
        ("_ring",),
        "half & current.finish & current.local",
        "half & current.local",
        ring_fails,
    ),
}


@pytest.mark.slow  # each test is a compilation; other files have a mutant in every run
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make(MUTANTS[name], monkeypatch)
    assert MUTANTS[name].check() != ""


def test_the_ring_passes_where_mutants_fail() -> None:
    assert ring_fails(kept_ring(OPTIONS)) == ""
