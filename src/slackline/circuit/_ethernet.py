"""Frames as Ethernet packets: what lies between a circuit and its MAC."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from slackline.circuit._axi_stream import axi_frames
from slackline.circuit._options import check_lanes

__all__ = ["ETHERTYPE", "EthernetPort", "frame_of", "packet_of"]

ETHERTYPE = 0x88B5
"""What IEEE 802 leaves to local experiments."""
_HEADER = 14
"""Bytes: destination, source, type."""
_ALL = 0xFFFF_FFFF_FFFF


def packet_of(frame: bytes, *, destination: int, source: int) -> bytes:
    """The packet that carries a frame; addresses as numbers, first byte highest."""
    addresses = destination.to_bytes(6, "big") + source.to_bytes(6, "big")
    return addresses + ETHERTYPE.to_bytes(2, "big") + frame


def frame_of(packet: bytes, *, address: int) -> bytes | None:
    """The frame in a packet; None if it is for somebody else, of another type, or holds nothing."""
    destination, kind = (int.from_bytes(packet[cut], "big") for cut in (slice(6), slice(12, 14)))
    if len(packet) <= _HEADER or kind != ETHERTYPE or destination not in (address, _ALL):
        return None
    return packet[_HEADER:]


class EthernetPort(wiring.Component):
    """Between a MAC and one port of a circuit: an Ethernet header before each frame.

    rx   AXI4-Stream of packets from the MAC, without their frame check sequence; see axi_frames
    o    AXI4-Stream of the frames in them: those of ETHERTYPE for `address` or for all
    i    AXI4-Stream of frames
    tx   AXI4-Stream of packets to `peer`, from `address`
    address, peer   48 bits, the first byte on the wire highest; still while packets pass
    filtered        a pulse: a packet was not for this port

    Neither side gains a cycle but for the beats of the header itself. Going in, a beat a cycle is
    taken for ever; going out, a frame whose packet is a beat longer than itself takes that beat.

    Twins: `frame_of` and `packet_of`.
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
        header = Cat(_bytes(self.peer, 6), _bytes(self.address, 6), _bytes(Const(ETHERTYPE, 16), 2))
        beats = [header[8 * size * k : 8 * size * (k + 1)] for k in range(whole)]
        # The beats of the header alone, then the frame's, each with what the one before has left.
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
            # When the frame is there: so a packet that has begun goes on.
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
        destination, kind = _bytes(header[:48], 6), _bytes(header[96:112], 2)
        mine = (kind == ETHERTYPE) & ((destination == self.address) | (destination == _ALL))
        carries = i.tkeep[rest:].any()
        data, keep = Cat(held, i.tdata[: 8 * rest]), Cat(held_keep, i.tkeep[:rest])
        # What begins gives no beat: it may come while the last one of what was before leaves.
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
                m.d.comb += self.filtered.eq(~wanted)
                m.d.sync += [over.eq(i.tlast & wanted), drops.eq(~i.tlast & ~wanted)]
            with m.Elif(begins):
                m.d.comb += self.filtered.eq(i.tlast)
            with m.Elif(~drops):
                m.d.sync += over.eq(i.tlast & carries)


def _bytes(value: Any, count: int) -> Value:
    """The bytes of a number in the other order."""
    return Cat(*reversed([value[8 * k : 8 * k + 8] for k in range(count)]))
