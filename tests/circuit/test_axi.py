"""The wires of circuits behind AXI, by the names that vendors' tools look for."""

from typing import Any

import pytest

from slackline import circuit
from slackline.circuit import NodeOptions

pytest.importorskip("amaranth", reason="circuits need amaranth: install slackline[circuit]")


def wires(inner: Any) -> dict[str, tuple[int, bool]]:
    """The width of each wire of the block, and whether it goes in."""
    made = circuit.convert("block", circuit.AxiBlock(inner))
    return {port.name: (port.width, port.input) for port in made.ports}


def test_a_node_has_a_stream_in_and_out_for_each_port_and_one_bus_for_its_registers() -> None:
    found = wires(circuit.AggregationNode(NodeOptions(ports=2, lanes=16)))
    into, out = (
        {"tdata": (512, way), "tkeep": (64, way), "tlast": (1, way), "tuser": (1, way)}
        | {"tvalid": (1, way), "tready": (1, not way)}
        for way in (True, False)
    )
    for port in range(2):
        for stem, wanted in ((f"s_axis_rx{port}_", into), (f"m_axis_tx{port}_", out)):
            assert {name: found.pop(stem + name) for name in wanted} == wanted
    assert found.pop("aclk") == found.pop("aresetn") == (1, True)
    assert len(found) == 19
    assert all(name.startswith("s_axil_") for name in found)
    assert found["s_axil_wdata"] == (32, True)
    assert found["s_axil_rdata"] == (32, False)


def test_a_stream_that_has_no_frames_is_filled_up_to_whole_bytes() -> None:
    assert wires(circuit.Lanes(2)) == {
        "aclk": (1, True),
        "aresetn": (1, True),
        "s_axis_i_tdata": (136, True),
        "s_axis_i_tvalid": (1, True),
        "s_axis_i_tready": (1, False),
        "m_axis_o_tdata": (64, False),
        "m_axis_o_tvalid": (1, False),
        "m_axis_o_tready": (1, True),
    }


def test_other_wires_keep_their_names() -> None:
    found = wires(circuit.Adder())
    assert found == {
        "aclk": (1, True),
        "aresetn": (1, True),
        "a": (32, True),
        "b": (32, True),
        "integer": (1, True),
        "sum": (32, False),
    }
