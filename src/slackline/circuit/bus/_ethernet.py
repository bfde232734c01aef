"""Ethernet packets around frames: the logic between a circuit and its MAC."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from slackline.circuit.bus._axi_stream import axi_frames
from slackline.circuit.options import REGISTERS_ETHERTYPE, check_lanes

__all__ = ["ETHERTYPE", "EthernetPort", "frame_of", "network_order", "packet_of"]

ETHERTYPE = 0x88B5
"""The EtherType that IEEE 802 leaves to local experiments."""
_HEADER = 14
"""Bytes of an Ethernet header: destination, source, type."""
_ALL = 0xFFFF_FFFF_FFFF


def packet_of(frame: bytes, *, destination: int, source: int) -> bytes:
    """Return the packet that carries a frame; addresses are numbers, highest byte first."""
    addresses = destination.to_bytes(6, "big") + source.to_bytes(6, "big")
    return addresses + ETHERTYPE.to_bytes(2, "big") + frame


def frame_of(packet: bytes, *, address: int) -> bytes | None:
    """Return the frame in a packet, or None if the packet is empty or has another address or type.

    A packet to the broadcast address counts as addressed to `address`.
    """
    destination, kind = (int.from_bytes(packet[cut], "big") for cut in (slice(6), slice(12, 14)))
    if len(packet) <= _HEADER or kind != ETHERTYPE or destination not in (address, _ALL):
        return None
    return packet[_HEADER:]


class EthernetPort(wiring.Component):
    """A port between a MAC and a circuit, which adds and removes the Ethernet header of each frame.

    rx             AXI4-Stream of packets from the MAC, without their frame check sequence; see
                   axi_frames
    o              AXI4-Stream of the frames in those packets that have ETHERTYPE and are addressed
                   to `address` or to all
    i              AXI4-Stream of frames
    tx             AXI4-Stream of packets to `peer`, from `address`
    address, peer  48 bits, the first byte on the wire highest; constant while packets pass
    filtered       a pulse for each packet that was dropped because it was not for this port, except
                   packets for registers: see RegisterPort

    Neither direction adds a cycle except for the header's own beats. The receiving side accepts a
    beat in every cycle. The sending side needs one more cycle for a frame if the packet around the
    frame is a beat longer than the frame.

    The twins (bit-exact Python models) are `frame_of` and `packet_of`.
    """

    def __init__(self, lanes: int) -> None:
        self.lanes = check_lanes(lanes)
        frames = axi_frames(lanes)
        super().__init__(
            {
                "rx": In(frames),
                "o": Out(frames),
                "i": In(frames),
                "tx": Out(frames),
                "address": In(48),
                "peer": In(48),
                "filtered": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        self._prepend(m)
        self._strip(m)
        return m

    def _prepend(self, m: Module) -> None:
        i, o, size = self.i, self.tx, 4 * self.lanes
        whole, rest = divmod(_HEADER, size)
        header = Cat(
            network_order(self.peer, 6),
            network_order(self.address, 6),
            network_order(Const(ETHERTYPE, 16), 2),
        )
        beats = [header[8 * size * k : 8 * size * (k + 1)] for k in range(whole)]
        # The beats that hold only header bytes go first. Each later beat joins the bytes left over
        # from the previous beat with the next bytes of the frame.
        at = Signal(range(whole + 1))
        begun, over = Signal(), Signal()
        left, left_keep = Signal(8 * rest), Signal(rest)
        damaged = Signal()
        joins = (at == whole) & ~over
        before = Mux(begun, left, header[8 * size * whole :])
        data = Cat(before, i.tdata)
        keep = Cat(Mux(begun, left_keep, Const((1 << rest) - 1, rest)), i.tkeep)
        spills = keep[size:].any()
        moves = o.tvalid & o.tready
        with m.If(joins):
            m.d.comb += [
                o.tvalid.eq(i.tvalid),
                i.tready.eq(o.tready),
                o.tdata.eq(data),
                o.tkeep.eq(keep),
                o.tlast.eq(i.tlast & ~spills),
                o.tuser.eq(o.tlast & i.tuser),
            ]
            with m.If(moves):
                m.d.sync += [
                    left.eq(data[8 * size :]),
                    left_keep.eq(keep[size:]),
                    damaged.eq(i.tuser),
                    begun.eq(~o.tlast),
                    over.eq(i.tlast & spills),
                ]
                with m.If(o.tlast):
                    m.d.sync += at.eq(0)
        with m.Elif(over):
            m.d.comb += [
                o.tvalid.eq(1),
                o.tdata.eq(left),
                o.tkeep.eq(left_keep),
                o.tlast.eq(1),
                o.tuser.eq(damaged),
            ]
            with m.If(moves):
                m.d.sync += [over.eq(0), begun.eq(0), at.eq(0)]
        with m.Else():
            # The header leaves only when the frame's first beat is there, so that no packet stalls
            # between its header and its frame.
            m.d.comb += [o.tvalid.eq(i.tvalid), o.tkeep.eq(-1)]
            for k, beat in enumerate(beats):
                with m.If(at == k):
                    m.d.comb += o.tdata.eq(beat)
            with m.If(moves):
                m.d.sync += at.eq(at + 1)

    def _strip(self, m: Module) -> None:
        i, o, size = self.rx, self.o, 4 * self.lanes
        whole, rest = divmod(_HEADER, size)
        kept = size - rest
        at = Signal(range(whole + 2))
        held, held_keep = Signal(8 * kept), Signal(kept)
        seen = Signal(8 * size * whole)
        over, damaged, drops = Signal(), Signal(), Signal()
        begins = at <= whole
        header = Cat(seen, i.tdata)
        destination, kind = network_order(header[:48], 6), network_order(header[96:112], 2)
        mine = (kind == ETHERTYPE) & ((destination == self.address) | (destination == _ALL))
        carries = i.tkeep[rest:].any()
        data, keep = Cat(held, i.tdata[: 8 * rest]), Cat(held_keep, i.tkeep[:rest])
        # A packet's first beats give no output, so they may come while the last beat of the
        # previous packet is still leaving.
        gives = ~begins & ~drops
        takes = i.tvalid & i.tready
        m.d.comb += [
            o.tdata.eq(Mux(over, held, data)),
            o.tkeep.eq(Mux(over, held_keep, keep)),
            o.tlast.eq(over | (i.tlast & ~carries)),
            o.tuser.eq(o.tlast & Mux(over, damaged, i.tuser)),
            o.tvalid.eq(over | (i.tvalid & gives)),
            i.tready.eq(Mux(over, begins & o.tready, begins | drops | o.tready)),
        ]
        with m.If(over & o.tready):
            m.d.sync += over.eq(0)
        with m.If(takes):
            m.d.sync += [
                held.eq(i.tdata[8 * rest :]),
                held_keep.eq(i.tkeep[rest:]),
                damaged.eq(i.tuser),
            ]
            if whole:
                m.d.sync += seen.eq(header[8 * size :])
            with m.If(begins):
                m.d.sync += at.eq(at + 1)
            with m.If(i.tlast):
                m.d.sync += [at.eq(0), drops.eq(0)]
            with m.If(at == whole):
                wanted = mine & carries
                m.d.comb += self.filtered.eq(~wanted & (kind != REGISTERS_ETHERTYPE))
                m.d.sync += [over.eq(i.tlast & wanted), drops.eq(~i.tlast & ~wanted)]
            with m.Elif(begins):
                m.d.comb += self.filtered.eq(i.tlast)
            with m.Elif(~drops):
                m.d.sync += over.eq(i.tlast & carries)


def network_order(value: Any, count: int) -> Value:
    """Return the first `count` bytes of a number in reverse order."""
    return Cat(*reversed([value[8 * k : 8 * k + 8] for k in range(count)]))
