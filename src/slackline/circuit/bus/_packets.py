"""Packets as streams of one payload each beat, as the harness of simulations drives them."""

from amaranth.hdl import Cat, Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["PacketBeat", "PacketStreams"]


class PacketBeat(data.StructLayout):
    """A beat of a packet: `count` of its bytes belong to the packet; `last` and `bad` end it."""

    def __init__(self, lanes: int) -> None:
        super().__init__({"data": 32 * lanes, "count": 8, "last": 1, "bad": 1})


class PacketStreams(wiring.Component):
    """A wrapper around a circuit with MACs, for simulations: AXI4-Streams become streams.

    rx, tx   of each port: a stream of PacketBeat from and to the port's MAC
    address  the circuit's own `address`
    """

    def __init__(self, circuit: wiring.Component, lanes: int) -> None:
        self.circuit, self.lanes = circuit, lanes
        packets = stream.Signature(PacketBeat(lanes))
        ports = len(circuit.rx)
        super().__init__(
            {"rx": In(packets).array(ports), "tx": Out(packets).array(ports), "address": In(48)}
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.circuit = circuit = self.circuit
        m.d.comb += circuit.address.eq(self.address)
        for outer, inner in zip(self.rx, circuit.rx, strict=True):
            beat = outer.payload
            m.d.comb += [
                inner.tdata.eq(beat.data),
                inner.tkeep.eq(Cat(beat.count > k for k in range(4 * self.lanes))),
                inner.tlast.eq(beat.last),
                inner.tuser.eq(beat.bad),
                inner.tvalid.eq(outer.valid),
                outer.ready.eq(inner.tready),
            ]
        for outer, inner in zip(self.tx, circuit.tx, strict=True):
            beat = outer.payload
            m.d.comb += [
                beat.data.eq(inner.tdata),
                beat.count.eq(sum(inner.tkeep[1:], inner.tkeep[0])),
                beat.last.eq(inner.tlast),
                beat.bad.eq(inner.tlast & inner.tuser),
                outer.valid.eq(inner.tvalid),
                inner.tready.eq(outer.ready),
            ]
        return m
