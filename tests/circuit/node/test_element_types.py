"""Tests that the table of element types alone decides which types a circuit adds, and how."""

import numpy as np
import pytest
from circuit_driving import Node

from slackline.circuit import ELEMENTS, Element, NodeOptions
from slackline.wire import DType

pytest.importorskip("amaranth", reason="amaranth is missing: slackline-torch[circuit]")


def answers(size: int) -> dict[DType, tuple[int, int]]:
    """Return for each type what element_of says, and whether `size` bytes are whole elements."""
    from amaranth.hdl import Module, Signal
    from amaranth.sim import Simulator

    from slackline.circuit.frame import element_of, whole_items

    dtype, code, whole = Signal(8), Signal(8), Signal()
    m = Module()
    m.d.comb += [code.eq(element_of(dtype)), whole.eq(whole_items(dtype, Signal(8, init=size)))]
    found = {}

    async def drive(context: object) -> None:
        for each in DType:
            context.set(dtype, int(each))  # type: ignore[attr-defined]
            await context.delay(1e-9)  # type: ignore[attr-defined]
            found[each] = (context.get(code), context.get(whole))  # type: ignore[attr-defined]

    simulator = Simulator(m)
    simulator.add_testbench(drive)
    simulator.run()
    return found


def test_every_row_of_the_table_has_its_code_and_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ELEMENTS, DType.UINT32, Element.INT32)
    for size in (4, 6, 7, 8):
        found = answers(size)
        for dtype in DType:
            whole = dtype in ELEMENTS and size % dtype.itemsize == 0
            assert found[dtype] == (ELEMENTS.get(dtype, 0), whole), (dtype, size)


@pytest.mark.slow
@pytest.mark.simulates
@pytest.mark.timeout(300)
def test_a_type_with_a_row_of_its_own_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    from slackline.circuit import AggregationNode, Simulation, convert

    monkeypatch.setitem(ELEMENTS, DType.UINT32, Element.INT32)
    options = NodeOptions(ports=2, lanes=1, slots=2, payload_bytes=64)
    with Simulation(convert("node", AggregationNode(options))) as simulation:
        node = Node(simulation, options)
        parts = [np.array([0x3F800000, 0xFFFFFFFF, 7], np.uint32), np.array([0x3F800000, 2, 8])]
        frames = [
            sender.message(part.astype(np.uint32).tobytes(), DType.UINT32, 1, 64)
            for sender, part in zip(node.senders, parts, strict=True)
        ]
        node.send_all(frames)
        simulation.run(1, cycles=1000, frames=True)
        ((found, _, _),) = simulation.frames(0)
    assert np.frombuffer(found[64:], np.uint32).tolist() == [0x7F000000, 1, 15]
