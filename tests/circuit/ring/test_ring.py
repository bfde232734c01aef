"""Tests that a ring NIC and its twin (Python model) give the same frames, sums and events."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from circuit_driving import resealed
from lossy_driving import CircuitRing, Faults
from ring_driving import (
    DTYPES,
    EPOCH,
    JOB,
    PLAN,
    Ring,
    Tensors,
    agree,
    counts,
    sent_alike,
    tensors,
)

from slackline.circuit import RingOptions, cached_ring
from slackline.errors import InternalError
from slackline.wire import HEADER_BYTES, DType, FrameFlag, FrameKind, decode

# The limit leaves time to compile a circuit on a busy machine.
pytestmark = [pytest.mark.simulates, pytest.mark.timeout(300)]

NARROW = RingOptions(lanes=1, slots=2, payload_bytes=128, operations=8)
BROAD = RingOptions(lanes=4, slots=4, payload_bytes=256, operations=16)
WIDE = RingOptions(lanes=16, slots=8, payload_bytes=1024, operations=16)


@pytest.fixture(
    params=[NARROW, *(pytest.param(each, marks=pytest.mark.slow) for each in (BROAD, WIDE))],
    ids=lambda options: f"{options.lanes}",
)
def open_ring(request: pytest.FixtureRequest) -> Iterator[Any]:
    from slackline.circuit import Simulation

    rings: list[Ring] = []

    def opened(kinds: list[str], stall: float = 0, latency: int = 0) -> Ring:
        options: RingOptions = request.param

        def simulate() -> Simulation:
            simulation = Simulation(cached_ring(options))
            simulation.memory_latency(latency)
            for stream in range(3):
                simulation.stall(stream, stall, 3 * stream + 1)
            for stream in range(5):
                simulation.stall(stream, stall, 3 * stream + 2, output=True)
            return simulation

        rings.append(Ring(kinds, options, simulate))
        return rings[-1]

    yield opened
    for ring in rings:
        ring.close()


@pytest.mark.parametrize(
    ("ranks", "stall", "latency"),
    [
        (2, 0, 0),
        (3, 0.1, 40),
        *(
            pytest.param(ranks, stall, latency, marks=pytest.mark.slow)
            for ranks in (2, 3, 4)
            for stall, latency in ((0, 0), (0.1, 40), (0.6, 7))
            if (ranks, stall) not in ((2, 0), (3, 0.1))
        ),
    ],
)
def test_circuits_send_what_their_twins_send_and_sum_to_the_bit(
    open_ring, ranks, stall, latency
) -> None:
    rng = np.random.default_rng(ranks)
    ring, twins = open_ring(["circuit"] * ranks, stall, latency), open_ring(["twin"] * ranks)
    options = ring.options
    for dtype in DTYPES:
        sizes = counts(rng, options, dtype)
        operations = [
            tensors(rng, options, ranks, dtype, count, tag) for tag, count in enumerate(sizes)
        ]
        agree(ring, twins, operations, rng)
    sent_alike(ring, twins)


def test_circuits_and_twins_mix_in_one_ring(open_ring) -> None:
    rng = np.random.default_rng(7)
    kinds = ["twin", "circuit", "twin", "circuit", "twin"]
    ring = open_ring(kinds)
    operations = [
        tensors(rng, ring.options, len(kinds), dtype, 100 + tag, tag)
        for tag, dtype in enumerate(DTYPES)
    ]
    ring.post(operations, rng)
    ring.settle(rng)
    assert ring.differences(operations) == ""


def spoiled(frame: bytes, options: RingOptions) -> dict[str, tuple[str, bytes]]:
    """Return frames that must not be summed, each with the counter that must count it."""
    flipped = bytearray(frame)
    flipped[20] ^= 4
    length = decode(frame).length
    long = bytes(options.payload_bytes + 4)
    return {
        "a bit of the header": ("malformed", bytes(flipped)),
        "cut": ("malformed", frame[: HEADER_BYTES + length - options.beat_bytes]),
        "longer than it says": ("malformed", frame + bytes(options.beat_bytes)),
        "cut in the header": ("malformed", frame[: HEADER_BYTES - 4 * options.lanes or 1]),
        "too long": ("malformed", resealed(frame, length=len(long))[:HEADER_BYTES] + long),
        "another kind": ("malformed", resealed(frame, kind=FrameKind.PROBE)),
        "another type": ("malformed", resealed(frame, dtype=DType.INT64)),
        "no type": ("malformed", resealed(frame, dtype=None)),
        "another flag": ("malformed", resealed(frame, flags=FrameFlag.PARTIAL | FrameFlag.EAGER)),
        "another plan": ("malformed", resealed(frame, plan_id=PLAN + 1)),
        "another chunk": ("unexpected", resealed(frame, chunk=1)),
        "another job": ("foreign", resealed(frame, job=JOB + 1)),
        "another epoch": ("foreign", resealed(frame, epoch=EPOCH + 1)),
        "another rank": ("foreign", resealed(frame, source=2)),
        "another tag": ("unexpected", resealed(frame, tag=77)),
        "another size": ("unexpected", resealed(frame, total=decode(frame).total + 4)),
        "a type that is summed": ("unexpected", resealed(frame, dtype=DType.INT32)),
        "an offset behind its own": ("unexpected", resealed(frame, offset=1 << 40)),
        "a final value of nothing": ("unexpected", resealed(frame, flags=FrameFlag(0))),
    }


def test_what_must_not_be_summed_is_counted_and_dropped(open_ring) -> None:
    rng = np.random.default_rng(8)
    ring, twins = open_ring(["twin", "circuit", "twin"]), open_ring(["twin"] * 3)
    whole = ring.options.payload_bytes // 4
    for each in (ring, twins):
        operation = tensors(np.random.default_rng(1), each.options, 3, DType.FLOAT32, whole, 5)
        each.post([operation], rng)
        each.devices[0].advance()
        (frame, *others) = each.devices[0].frames()
        for name, (counter, wrong) in spoiled(frame, each.options).items():
            before = each.devices[1].counters()
            each.devices[1].receive(wrong)
            each.devices[1].advance()
            after = each.devices[1].counters()
            names = ("accepted", "malformed", "foreign", "unexpected")
            changed = {key: after[key] - before[key] for key in names if after[key] != before[key]}
            wanted = {counter: 1} | ({"accepted": 1} if counter == "unexpected" else {})
            assert changed == wanted, name
        for right in (frame, *others):
            each.devices[1].receive(right)
        each.settle(rng)
        assert each.differences([operation]) == ""
        again = each.devices[1].counters()["unexpected"]
        each.devices[1].receive(frame)
        each.devices[1].advance()
        assert each.devices[1].counters()["unexpected"] == again + 1


def test_memory_that_was_not_posted_is_neither_read_nor_written(open_ring) -> None:
    ring = open_ring(["circuit", "twin"])
    operation = tensors(np.random.default_rng(3), ring.options, 2, DType.FLOAT32, 16, 5)
    device = ring.devices[0]
    device.post(operation.operation(0))
    device._simulation.take_back(operation.operation(0).source, 64, writable=False)
    with pytest.raises(InternalError, match=r"^the circuit went 1 times beyond the memory it was"):
        device.advance()


def test_more_tensors_than_operations_go_one_after_the_other(open_ring) -> None:
    rng = np.random.default_rng(4)
    ring = open_ring(["circuit"] * 2)
    for turn in range(3):
        operations = [
            tensors(rng, ring.options, 2, DType.FLOAT32, 1 + tag, tag + 100 * turn)
            for tag in range(ring.options.operations)
        ]
        ring.post(operations, rng)
        ring.settle()
        assert ring.differences(operations) == ""
        ring.done = [[], []]


@pytest.fixture
def open_circuits(open_ring: Any) -> Callable[..., CircuitRing]:
    def opened(ranks: int, faults: Faults, stall: float = 0, **settings: int) -> CircuitRing:
        ring = open_ring(["circuit"] * ranks, stall)
        simulations = [device._simulation for device in ring.devices]
        for simulation in simulations:
            simulation.write(0x014, 0)
        rng = np.random.default_rng(ranks)
        return CircuitRing(simulations, ring.options, faults, rng, **settings)

    return opened


def mixed(ring: CircuitRing) -> list[Tensors]:
    """Return operations of all types, as many as can be open at once."""
    options, ranks = ring.options, len(ring.simulations)
    most = 2 * options.payload_bytes // 4
    return [
        tensors(ring.rng, options, ranks, DTYPES[k % 4], int(ring.rng.integers(1, most)), k)
        for k in range(options.operations)
    ]


def test_circuits_grant_and_acknowledge_each_other_in_any_order_of_posting(open_circuits) -> None:
    ring = open_circuits(3, Faults(), timeout=100_000)
    operations = mixed(ring)
    assert ring.run(operations, turns=3000) == ""
    for name in ("resent", "repeated", "unordered", "malformed", "foreign", "unexpected"):
        assert ring.total(name) == 0, name


@pytest.mark.parametrize(
    ("faults", "sign"),
    [
        pytest.param(Faults(lost=0.1), "resent", id="lost", marks=pytest.mark.slow),
        pytest.param(Faults(doubled=0.3), "repeated", id="doubled", marks=pytest.mark.slow),
        pytest.param(Faults(late=0.3), "accepted", id="late", marks=pytest.mark.slow),
        pytest.param(Faults(damaged=0.2), "malformed", id="damaged", marks=pytest.mark.slow),
        pytest.param(Faults(lost=0.1, doubled=0.1, late=0.2, damaged=0.1), "resent", id="all"),
    ],
)
def test_what_wires_do_to_frames_changes_no_bit(open_circuits, faults, sign) -> None:
    ring = open_circuits(3, faults, 0.1)
    operations = mixed(ring)
    assert ring.run(operations, turns=5000) == ""
    assert ring.total(sign) > 0
    assert ring.total("unexpected") == 0
