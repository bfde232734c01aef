"""Bridges between AXI4-Stream, the interface of Ethernet MACs, and streams of Beat."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from slackline.circuit.frame import HEADER, Beat
from slackline.circuit.options import check_lanes

__all__ = ["FromAxi", "LastBytes", "ToAxi", "axi_frames"]


def axi_frames(lanes: int) -> wiring.Signature:
    """Return an AXI4-Stream signature for frames, seen from the source: a packet is one frame.

    A packet starts with the frame's header. Bytes are little endian. `tkeep` has a bit for each
    byte, all ones except in a packet's last transfer. `tuser` is valid in the last transfer only,
    and says that the packet is damaged.
    """
    return wiring.Signature(
        {
            "tdata": Out(32 * lanes),
            "tkeep": Out(4 * lanes),
            "tlast": Out(1),
            "tuser": Out(1),
            "tvalid": Out(1),
            "tready": In(1),
        }
    )


class LastBytes(wiring.Component):
    """A mask of the bytes in a frame's last beat that belong to the frame, from the length field.

    data, last  the beat that is offered
    taken       the beat moves in this cycle
    keep        a bit for each byte, valid if the beat is the last one, in the same cycle
    """

    def __init__(self, lanes: int) -> None:
        self.lanes = check_lanes(lanes)
        super().__init__(
            {
                "data": In(32 * lanes),
                "last": In(1),
                "taken": In(1),
                "keep": Out(4 * lanes),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        bits, own_bytes = 32 * self.lanes, 4 * self.lanes
        beats = HEADER.size // bits
        at_beat, at_bit = divmod(HEADER["length"].offset, bits)
        at = Signal(range(beats + 1))
        here = at == at_beat
        held = Signal(ceil_log2(own_bytes))
        over = Mux(here, self.data[at_bit : at_bit + len(held)], held)
        with m.If(self.taken):
            with m.If(self.last):
                m.d.sync += [at.eq(0), held.eq(0)]
            with m.Else():
                m.d.sync += [at.eq(at + (at != beats)), held.eq(over)]
        # The header fills whole beats, so only the payload can end within a beat. A remainder of 0
        # means that the last beat is full.
        m.d.comb += self.keep.eq(Cat((over == 0) | (over > k) for k in range(own_bytes)))
        return m


class FromAxi(wiring.Component):
    """A bridge from a MAC's packets to frames, which adds no cycle and never delays a packet.

    i  AXI4-Stream, see axi_frames
    o  stream of Beat

    A frame is `bad` if `tuser` says so, if any byte is missing before the last beat, or if the last
    beat has more or fewer bytes than the header's length field requires. A byte whose `tkeep` bit
    is 0 becomes zero. If `headed` is false, the data have no header, as from a DMA core, and
    `tkeep` is not checked.
    """

    def __init__(self, lanes: int, *, headed: bool = True) -> None:
        self.lanes, self.headed = check_lanes(lanes), headed
        super().__init__({"i": In(axi_frames(lanes)), "o": Out(stream.Signature(Beat(lanes)))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        i, o = self.i, self.o
        m.d.comb += [
            o.valid.eq(i.tvalid),
            i.tready.eq(o.ready),
            o.payload.data.eq(i.tdata & Cat(bit.replicate(8) for bit in i.tkeep)),
            o.payload.last.eq(i.tlast),
            o.payload.bad.eq(i.tlast & (i.tuser | self._wrong(m))),
        ]
        return m

    def _wrong(self, m: Module) -> Value:
        """Return a signal, valid in the last beat: the frame is not as long as its header says."""
        if not self.headed:
            return Const(0)
        i = self.i
        m.submodules.own = own = LastBytes(self.lanes)
        gaps = Signal()
        m.d.comb += [
            own.data.eq(i.tdata),
            own.last.eq(i.tlast),
            own.taken.eq(i.tvalid & i.tready),
        ]
        with m.If(own.taken):
            m.d.sync += gaps.eq(~i.tlast & (gaps | ~i.tkeep.all()))
        return gaps | (i.tkeep != own.keep)


class ToAxi(wiring.Component):
    """A bridge from frames to a MAC's packets, which adds no cycle and trims the last beat.

    i  stream of Beat; `bad` becomes `tuser`, which makes a MAC send the packet as an error
    o  AXI4-Stream, see axi_frames

    A packet has as many bytes as the header's length field says. If `headed` is false, the data
    have no header, as for a DMA core, and `tkeep` is all ones.
    """

    def __init__(self, lanes: int, *, headed: bool = True) -> None:
        self.lanes, self.headed = check_lanes(lanes), headed
        super().__init__({"i": In(stream.Signature(Beat(lanes))), "o": Out(axi_frames(lanes))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        i, o = self.i, self.o
        last = i.payload.last
        all_bytes = Const(-1, 4 * self.lanes)
        keep: Value = all_bytes
        if self.headed:
            m.submodules.own = own = LastBytes(self.lanes)
            keep = own.keep
            m.d.comb += [
                own.data.eq(i.payload.data),
                own.last.eq(last),
                own.taken.eq(i.valid & i.ready),
            ]
        m.d.comb += [
            o.tvalid.eq(i.valid),
            i.ready.eq(o.tready),
            o.tdata.eq(i.payload.data),
            o.tkeep.eq(Mux(last, keep, all_bytes)),
            o.tlast.eq(last),
            o.tuser.eq(last & i.payload.bad),
        ]
        return m
