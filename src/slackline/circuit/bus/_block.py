"""A circuit as a block for a vendor's tool: AXI4-Stream, AXI4-Lite, one clock, one reset."""

from collections.abc import Collection, Iterator
from typing import Any

from amaranth.hdl import ClockDomain, ClockSignal, Module, ResetSignal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import Flow, In, Member, Out

from slackline.circuit.bus._axi_lite import AXI_LITE, FromAxiLite
from slackline.circuit.bus._axi_stream import FromAxi, ToAxi, axi_frames
from slackline.circuit.bus._bank import BUS
from slackline.circuit.frame import Beat

__all__ = ["AxiBlock"]

_STREAM = {"payload", "valid", "ready"}
_AXI_STREAM = set(axi_frames(1).members)


class AxiBlock(wiring.Component):
    """A wrapper around `circuit`: its buses have the wire names that vendors' tools recognise.

    aclk, aresetn         the clock of all parts; `aresetn` low at a rising edge resets them
    s_axis_rx0_tdata...   the bus of `rx[0]`, an incoming stream of Beat: see axi_frames
    m_axis_tx0_tdata...   the bus of `tx[0]`, an outgoing stream of Beat
    s_axis_NAME_tdata...  the bus of an incoming stream that is AXI4-Stream already. A stream of any
                          other payload has `tdata`, filled up to whole bytes with zeros, `tvalid`
                          and `tready`. Outgoing streams begin with `m_axis`
    s_axil_awaddr...      the bus of the registers: see FromAxiLite
    NAME                  any other wire, under its own name

    The wrapper adds no cycle to any stream. Streams of Beat carry frames, except those named in
    `headless`: they carry data from or to a DMA core, without frame headers.
    """

    def __init__(self, circuit: wiring.Component, headless: Collection[str] = ()) -> None:
        self.circuit, self.headless = circuit, headless
        members: dict[str, Member] = {"aclk": In(1), "aresetn": In(1)}
        for name, member, value in _members(circuit):
            if member.is_port:
                members[name] = Member(member.flow, member.shape)
                continue
            prefix, signature = self._boundary(name, member, value)
            inward = member.flow == In
            for wire, inner in signature.members.items():
                flow = inner.flow.flip() if inward else inner.flow
                members[f"{prefix}_{wire}"] = Member(flow, inner.shape)
        super().__init__(members)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.domains.sync = ClockDomain()
        m.d.comb += [ClockSignal().eq(self.aclk), ResetSignal().eq(~self.aresetn)]
        m.submodules.circuit = self.circuit
        for name, member, value in _members(self.circuit):
            if member.is_port:
                self._join(m, member.flow, getattr(self, name), value)
                continue
            prefix, signature = self._boundary(name, member, value)
            inward = member.flow == In
            if member.signature in (BUS, BUS.flip()):
                m.submodules.registers = bridge = FromAxiLite()
                outer = bridge.i
                wiring.connect(m, bridge.o, value)
            elif set(member.signature.members) == _AXI_STREAM:
                outer = value
            elif (lanes := _frame_lanes(value)) is None:
                outer = _plain(value)
            elif inward:
                m.submodules[f"from_{name}"] = bridge = FromAxi(
                    lanes, headed=name not in self.headless
                )
                outer = bridge.i
                wiring.connect(m, bridge.o, value)
            else:
                m.submodules[f"to_{name}"] = bridge = ToAxi(lanes, headed=name not in self.headless)
                outer = bridge.o
                wiring.connect(m, value, bridge.i)
            for wire, inner in signature.members.items():
                flow = inner.flow.flip() if inward else inner.flow
                side = outer[wire] if isinstance(outer, dict) else getattr(outer, wire)
                self._join(m, flow, getattr(self, f"{prefix}_{wire}"), side)
        return m

    @staticmethod
    def _boundary(name: str, member: Member, value: Any) -> tuple[str, wiring.Signature]:
        """Return the prefix of a bus's wires, and the wires as its source or master has them."""
        if member.signature in (BUS, BUS.flip()):
            return "s_axil", AXI_LITE
        prefix = f"{'s' if member.flow == In else 'm'}_axis_{name}"
        if set(member.signature.members) == _AXI_STREAM:
            return prefix, axi_frames(len(value.tdata) // 32)
        if set(member.signature.members) != _STREAM:
            raise TypeError(f"{name} is neither a stream nor a bus of registers")
        lanes = _frame_lanes(value)
        if lanes is not None:
            return prefix, axi_frames(lanes)
        width = -(-len(_plain(value)["tdata"]) // 8) * 8
        return prefix, wiring.Signature({"tdata": Out(width), "tvalid": Out(1), "tready": In(1)})

    @staticmethod
    def _join(m: Module, flow: Flow, outer: Any, inner: Any) -> None:
        m.d.comb += inner.eq(outer) if flow == In else outer.eq(inner)


def _members(circuit: wiring.Component) -> Iterator[tuple[str, Member, Any]]:
    """Yield each member of the circuit by name; an array yields `name0`, `name1`, ..."""
    for name, member in circuit.signature.members.items():
        value = getattr(circuit, name)
        if not member.dimensions:
            yield name, member, value
            continue
        (count,) = member.dimensions
        for k in range(count):
            yield f"{name}{k}", member, value[k]


def _frame_lanes(value: Any) -> int | None:
    """Return the number of lanes of a stream of Beat, or None for a stream of another payload."""
    payload = value.payload
    if not isinstance(payload, data.View) or not isinstance(payload.shape(), Beat):
        return None
    return len(payload.data) // 32


def _plain(value: Any) -> dict[str, Any]:
    payload = value.payload
    bits = payload.as_value() if isinstance(payload, data.View) else payload
    return {"tdata": bits, "tvalid": value.valid, "tready": value.ready}
