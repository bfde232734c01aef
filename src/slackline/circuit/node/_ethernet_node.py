"""The aggregation node between MACs: an Ethernet port for each rank, and registers as packets."""

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from slackline.circuit.bus import (
    EthernetPort,
    FromAxi,
    PacketMerge,
    RegisterPort,
    ToAxi,
    axi_frames,
)
from slackline.circuit.frame import Beat
from slackline.circuit.node._aggregation import AggregationNode
from slackline.circuit.options import NodeOptions

__all__ = ["EthernetNode", "FrameGate"]


class FrameGate(wiring.Component):
    """A gate that drops each frame whose first beat is not taken at once.

    i        stream of Beat, always ready
    o        stream of Beat, in the same cycle; its reader may refuse the first beat of a frame only
    dropped  a pulse for each frame that was dropped
    """

    def __init__(self, lanes: int) -> None:
        beats = stream.Signature(Beat(lanes))
        super().__init__({"i": In(beats), "o": Out(beats), "dropped": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        i, o = self.i, self.o
        within, drops = Signal(), Signal()
        m.d.comb += [
            i.ready.eq(1),
            o.payload.eq(i.payload),
            o.valid.eq(i.valid & ~drops),
            self.dropped.eq(i.valid & ~drops & ~within & ~o.ready),
        ]
        with m.If(i.valid):
            m.d.sync += within.eq(~i.payload.last)
            with m.If(i.payload.last):
                m.d.sync += drops.eq(0)
            with m.Elif(self.dropped):
                m.d.sync += drops.eq(1)
        return m


class EthernetNode(wiring.Component):
    """An AggregationNode whose frames and registers are Ethernet packets.

    rx[k]    AXI4-Stream of packets from the MAC of port k; see axi_frames
    tx[k]    AXI4-Stream of packets to the MAC of port k
    address  the address of port 0, the first byte on the wire highest; that of port k is k higher

    Frames are packets of EtherType 0x88B5 to the port's address. Sums go to the host that last
    wrote a register, from the port's address. Registers are read and written by packets of
    EtherType 0x88B6 to port 0: see RegisterPort. Packets of other types and to other addresses are
    dropped, and counted in the port's register `strangers`. A frame that the node cannot take at
    once, since it is closed or has no free slot, is dropped and counted in `overruns`: a MAC cannot
    wait, and no request for a register must wait behind a frame.
    """

    def __init__(self, options: NodeOptions) -> None:
        self.options = options
        frames = axi_frames(options.lanes)
        super().__init__(
            {
                "rx": In(frames).array(options.ports),
                "tx": Out(frames).array(options.ports),
                "address": In(48),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        lanes = self.options.lanes
        m.submodules.node = node = AggregationNode(self.options, between_macs=True)
        m.submodules.registers = registers = RegisterPort(lanes)
        wiring.connect(m, registers.o, node.bus)
        m.d.comb += registers.address.eq(self.address)
        for port in range(self.options.ports):
            m.submodules[f"ethernet_{port}"] = ethernet = EthernetPort(lanes)
            m.submodules[f"from_{port}"] = inward = FromAxi(lanes)
            m.submodules[f"to_{port}"] = outward = ToAxi(lanes)
            rx, tx = self.rx[port], self.tx[port]
            wiring.connect(m, wiring.flipped(rx), ethernet.rx)
            wiring.connect(m, ethernet.o, inward.i)
            m.submodules[f"gate_{port}"] = gate = FrameGate(lanes)
            wiring.connect(m, inward.o, gate.i)
            wiring.connect(m, gate.o, node.rx[port])
            wiring.connect(m, node.tx[port], outward.i)
            wiring.connect(m, outward.o, ethernet.i)
            m.d.comb += [
                ethernet.address.eq(self.address + port),
                ethernet.peer.eq(registers.peer),
                node.strangers[port].eq(ethernet.filtered),
                node.overruns[port].eq(gate.dropped),
            ]
            if port:
                wiring.connect(m, ethernet.tx, wiring.flipped(tx))
                continue
            m.submodules.merge = merge = PacketMerge(lanes)
            wiring.connect(m, registers.tx, merge.first)
            wiring.connect(m, ethernet.tx, merge.other)
            wiring.connect(m, merge.o, wiring.flipped(tx))
            m.d.comb += registers.taken.eq(rx.tvalid & rx.tready)
            for name in ("tdata", "tkeep", "tlast", "tuser", "tvalid"):
                m.d.comb += getattr(registers.rx, name).eq(getattr(rx, name))
        return m
