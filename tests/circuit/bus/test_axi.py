"""Tests of the wires of circuits behind AXI, and of the beats that pass the AXI bridges."""

from typing import Any

import pytest

from slackline import circuit
from slackline.circuit import NodeOptions
from slackline.wire import FrameKind, Header, encode

pytest.importorskip("amaranth", reason="amaranth is missing: slackline-torch[circuit]")


def wires(inner: Any) -> dict[str, tuple[int, bool]]:
    """Return the width of each wire of the block by name, and whether the wire is an input."""
    made = circuit.convert("block", circuit.AxiBlock(inner))
    return {port.name: (port.width, port.input) for port in made.ports}


def test_a_node_has_a_stream_in_and_out_for_each_port_and_one_bus_for_its_registers() -> None:
    found = wires(circuit.AggregationNode(NodeOptions(ports=2, lanes=1, slots=2, payload_bytes=64)))
    into, out = (
        {"tdata": (32, way), "tkeep": (4, way), "tlast": (1, way), "tuser": (1, way)}
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
    assert wires(circuit.Lanes(1)) == {
        "aclk": (1, True),
        "aresetn": (1, True),
        "s_axis_i_tdata": (72, True),
        "s_axis_i_tvalid": (1, True),
        "s_axis_i_tready": (1, False),
        "m_axis_o_tdata": (32, False),
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
        "way": (1, True),
        "sum": (32, False),
    }


def answers(bridge: Any, beats: list[dict[str, int]], inward: bool) -> list[dict[str, int]]:
    """Return the outputs of a bridge for each beat, with a beat a cycle."""
    from amaranth.hdl import Module, Signal
    from amaranth.sim import Simulator

    shown = []

    async def drive(context: Any) -> None:
        context.set(bridge.o.ready if inward else bridge.o.tready, 1)
        for beat in beats:
            for name, value in beat.items():
                side = getattr(bridge.i if inward else bridge.i.payload, name)
                context.set(side, value)
            context.set(bridge.i.tvalid if inward else bridge.i.valid, 1)
            names = ("data", "last", "bad") if inward else ("tdata", "tkeep", "tlast", "tuser")
            side = bridge.o.payload if inward else bridge.o
            shown.append({name: context.get(getattr(side, name)) for name in names})
            await context.tick()

    m = Module()
    m.submodules.bridge = bridge
    # The bridge has no state and so no clock; this statement gives the simulator a clock.
    m.d.sync += Signal().eq(1)
    simulator = Simulator(m)
    simulator.add_clock(1e-9)
    simulator.add_testbench(drive)
    simulator.run()
    return shown


def header(length: int) -> bytes:
    return encode(Header(kind=FrameKind.DATA, length=length, total=length))


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("length", [1, 3, 64, 65])
def test_a_frames_last_packet_beat_keeps_its_own_bytes(lanes: int, length: int) -> None:
    from slackline.circuit.bus._axi_stream import FromAxi, ToAxi

    size = 4 * lanes
    frame = header(length) + bytes(range(1, length + 1))
    parts = [frame[at : at + size] for at in range(0, len(frame), size)]
    words = [int.from_bytes(part, "little") for part in parts]
    ends = [k == len(parts) - 1 for k in range(len(parts))]
    # The second frame follows at once, and must find no state of the first.
    beats = [{"data": word, "last": end} for word, end in zip(words, ends, strict=True)] * 2
    packet = answers(ToAxi(lanes), beats, inward=False)
    assert [each["tkeep"] for each in packet] == [(1 << len(part)) - 1 for part in parts] * 2
    assert not any(each["tuser"] for each in packet)
    back = answers(FromAxi(lanes), packet, inward=True)
    assert back == [{**beat, "bad": 0} for beat in beats]


def test_data_without_a_header_are_kept_whole_and_judged_by_nothing() -> None:
    from slackline.circuit.bus._axi_stream import FromAxi, ToAxi

    beats = [{"data": 0x0504030201, "last": 0}, {"data": 7, "last": 1}]
    packet = answers(ToAxi(2, headed=False), beats, inward=False)
    assert [each["tkeep"] for each in packet] == [0xFF, 0xFF]
    packet[1]["tkeep"] = 0x01
    back = answers(FromAxi(2, headed=False), packet, inward=True)
    assert back == [{**beat, "bad": 0} for beat in beats]
