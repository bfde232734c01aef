"""Mutants of a ring NIC: NICs that are wrong in one place, with the check that finds them."""

from contextlib import ExitStack

import numpy as np
from lossy_driving import CircuitRing, Faults
from mutating import Mutant
from ring_driving import DTYPES, tensors

from slackline.circuit import RingOptions, Verilog

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
        "ring._receiver",
        ("RingReceiver",),
        ("ring._nic",),
        "return near & ~arrived",
        "return ~arrived",
        ring_fails,
    ),
    "credit": Mutant(
        "ring._window",
        ("RingWindow",),
        ("ring._transmitter",),
        "used < slots",
        "used <= slots",
        ring_fails,
    ),
    "rounding": Mutant(
        "ring._datapath",
        ("RingDatapath",),
        ("ring._nic",),
        "half & current.finish & current.local",
        "half & current.local",
        ring_fails,
    ),
}
