"""Tests that the aggregation node's circuit and its Python twin give sums that are bit-identical to
the reference."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from circuit_cases import LONG_SUMS, SUMS
from circuit_driving import Node, Sender
from conformance_vectors import THREAD_MODES, Case, same_bits, thread_modes

from slackline import circuit
from slackline.circuit import NodeOptions, NodeTwin, cached_node
from slackline.testing.reference import Array
from slackline.wire import HEADER_BYTES

NARROW = NodeOptions(ports=3, lanes=1, slots=4, payload_bytes=64)
WIDE = NodeOptions(ports=2, lanes=16, slots=8, payload_bytes=256)
Reduced = Callable[[list[list[bytes]]], list[bytes]]
"""A function from the frames of every rank to the frames of the sums."""


def result(frames: list[bytes], case: Case) -> Array:
    """Return the array that a rank assembles from the frames it receives."""
    payload = b"".join(frame[HEADER_BYTES:] for frame in frames)
    return np.frombuffer(payload, case.inputs(1)[0].dtype)


def check(cases: list[Case], options: NodeOptions, reduced: Reduced) -> None:
    senders = [Sender(rank) for rank in range(options.ports)]
    for tag, case in enumerate(cases):
        inputs = case.inputs(options.ports)
        frames = [
            sender.message(each.tobytes(), case.dtype, tag, options.payload_bytes)
            for sender, each in zip(senders, inputs, strict=True)
        ]
        expected = case.expected("direct", options.ports, "rank")
        with thread_modes(tag % THREAD_MODES):
            sums = reduced(frames)
        assert same_bits(result(sums, case), expected, case.dtype), case


@pytest.mark.parametrize("ports", [2, 3, 4, 8])
def test_the_twin_has_the_bits_of_the_reference(ports: int) -> None:
    options = NodeOptions(ports=ports, lanes=16, slots=4, payload_bytes=8192)
    twin = NodeTwin(options=options, job=7, epoch=3, source=9)

    def reduced(frames: list[list[bytes]]) -> list[bytes]:
        made = []
        for row in zip(*frames, strict=True):
            for port, frame in enumerate(row):
                made += twin.receive(port, frame)
        return made

    check([*SUMS, *LONG_SUMS], options, reduced)


@pytest.fixture(
    params=[pytest.param(NARROW, id="3x1"), pytest.param(WIDE, id="2x16", marks=pytest.mark.slow)]
)
def node(request: pytest.FixtureRequest) -> Iterator[Any]:
    with circuit.Simulation(cached_node(request.param)) as simulation:
        yield Node(simulation, request.param)


@pytest.mark.simulates
@pytest.mark.timeout(300)
def test_the_circuit_has_the_bits_of_the_reference_at_every_port(node: Any) -> None:
    def reduced(frames: list[list[bytes]]) -> list[bytes]:
        for port, own in enumerate(frames):
            for frame in own:
                node.simulation.send(port, frame)
        node.simulation.run(len(frames[0]), cycles=200 * len(frames[0]) + 1000, frames=True)
        found = [
            [frame for frame, _, _ in node.simulation.frames(port)]
            for port in range(node.options.ports)
        ]
        assert all(each == found[0] for each in found)
        return found[0]

    check([*SUMS, *(LONG_SUMS[:1] if node.options is WIDE else [])], node.options, reduced)
