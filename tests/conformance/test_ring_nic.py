"""Tests that rings of NICs, as circuits and as Python twins, give every rank sums that are
bit-identical to the reference."""

import numpy as np
import pytest
from circuit_cases import LONG_SUMS, SUMS
from conformance_vectors import THREAD_MODES, Case, same_bits, thread_modes
from ring_driving import Ring, Tensors, longest_frame

from slackline import circuit
from slackline.circuit import RingOptions, cached_ring

PLANS = ("reduce-broadcast", "ring")
NARROW = RingOptions(lanes=1, slots=2, payload_bytes=128, operations=8)


def check(ring: Ring, cases: list[Case], plan: str) -> None:
    ranks = len(ring.devices)
    for tag, case in enumerate(cases):
        sources = [np.array(each) for each in case.inputs(ranks)]
        frame = longest_frame(ring.options, case.dtype)
        operation = Tensors(tag, case.dtype, frame, sources, rotates=plan == "ring")
        with thread_modes(tag % THREAD_MODES):
            ring.post([operation], np.random.default_rng(tag))
            ring.settle()
        expected = case.expected(plan, ranks, "rank")
        for target in operation.targets:
            assert same_bits(target, expected, case.dtype), case


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(
    "ranks", [2, 3, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (4, 7))]
)
def test_twins_have_the_bits_of_the_reference(ranks: int, plan: str) -> None:
    check(Ring(["twin"] * ranks, RingOptions()), [*SUMS, *LONG_SUMS], plan)


@pytest.mark.simulates
@pytest.mark.timeout(300)
@pytest.mark.parametrize("longest", [1000, pytest.param(4099, marks=pytest.mark.slow)])
def test_circuits_have_the_bits_of_the_reference(longest: int) -> None:
    verilog = cached_ring(NARROW)
    ring = Ring(["circuit"] * 3, NARROW, lambda: circuit.Simulation(verilog))
    sums = [case for case in SUMS if case.count <= longest]
    check(ring, sums, "reduce-broadcast")
    check(ring, sums[::4], "ring")
    ring.close()
