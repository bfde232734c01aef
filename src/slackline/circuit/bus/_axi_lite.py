"""A bridge from AXI4-Lite to a circuit's registers."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from slackline.circuit.bus._bank import BUS
from slackline.circuit.proof import claim

__all__ = ["ADDRESS_BITS", "AXI_LITE", "OKAY", "SLVERR", "FromAxiLite"]

OKAY, SLVERR = 0, 2
"""AXI response codes."""

ADDRESS_BITS = 18
"""Bits of a byte address; the register bus behind the bridge counts words in 16 bits."""

AXI_LITE = wiring.Signature(
    {
        "awaddr": Out(ADDRESS_BITS),
        "awprot": Out(3),
        "awvalid": Out(1),
        "awready": In(1),
        "wdata": Out(32),
        "wstrb": Out(4),
        "wvalid": Out(1),
        "wready": In(1),
        "bresp": In(2),
        "bvalid": In(1),
        "bready": Out(1),
        "araddr": Out(ADDRESS_BITS),
        "arprot": Out(3),
        "arvalid": Out(1),
        "arready": In(1),
        "rdata": In(32),
        "rresp": In(2),
        "rvalid": In(1),
        "rready": Out(1),
    }
)
"""A signature of AXI4-Lite with 32 bits of data, seen from the master. Addresses count bytes. The
bridge ignores the lowest two bits of an address, and `prot`."""


class FromAxiLite(wiring.Component):
    """A bridge from one AXI4-Lite master to a register bus.

    i  AXI_LITE, the master's side
    o  BUS, the registers' side

    The address and the data of a write may come in either order. One write and one read may be
    pending at a time. Each of the two is served within three cycles after its response channel is
    free; a write goes first. A register is written whole: a write with a `wstrb` of neither 0 nor
    15 changes nothing and is answered SLVERR.
    """

    def __init__(self) -> None:
        super().__init__({"i": In(AXI_LITE), "o": Out(BUS)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        i, o = self.i, self.o
        addressed, filled, asked, reading = (
            Signal(name=name) for name in ("addressed", "filled", "asked", "reading")
        )
        to, of = Signal(16), Signal(16)
        strobes = Signal(4)
        m.d.comb += [i.awready.eq(~addressed), i.wready.eq(~filled), i.arready.eq(~asked)]
        with m.If(i.awvalid & i.awready):
            m.d.sync += [addressed.eq(1), to.eq(i.awaddr[2:])]
        with m.If(i.wvalid & i.wready):
            m.d.sync += [filled.eq(1), o.write_data.eq(i.wdata), strobes.eq(i.wstrb)]
        with m.If(i.arvalid & i.arready):
            m.d.sync += [asked.eq(1), of.eq(i.araddr[2:])]

        writes, reads = Signal(), Signal()
        m.d.comb += [
            writes.eq(addressed & filled & (~i.bvalid | i.bready)),
            # The register bus answers a cycle later, so a read waits until no earlier read still
            # needs `rdata`.
            reads.eq(asked & ~writes & ~reading & (~i.rvalid | i.rready)),
            o.address.eq(Mux(writes, to, of)),
            o.write.eq(writes & strobes.all()),
        ]
        with m.If(i.bready):
            m.d.sync += i.bvalid.eq(0)
        with m.If(writes):
            whole = strobes.all() | ~strobes.any()
            m.d.sync += [
                addressed.eq(0),
                filled.eq(0),
                i.bvalid.eq(1),
                i.bresp.eq(Mux(whole, OKAY, SLVERR)),
            ]
        with m.If(i.rready):
            m.d.sync += i.rvalid.eq(0)
        with m.If(reads):
            m.d.sync += asked.eq(0)
        m.d.sync += reading.eq(reads)
        with m.If(reading):
            m.d.sync += [i.rvalid.eq(1), i.rdata.eq(o.read_data)]
        m.d.comb += i.rresp.eq(OKAY)

        def under_way(valid: Value, ready: Value, answered: Value) -> Value:
            """Return the number of requests that have no response yet, a number for proofs only."""
            count = Signal(2)
            if platform == "formal":
                m.d.sync += count.eq(count + (valid & ready) - answered)
            return count

        claim(
            m,
            platform,
            under_way(i.awvalid, i.awready, i.bvalid & i.bready) == addressed + i.bvalid,
            under_way(i.wvalid, i.wready, i.bvalid & i.bready) == filled + i.bvalid,
            under_way(i.arvalid, i.arready, i.rvalid & i.rready) == asked + reading + i.rvalid,
            ~(reading & i.rvalid),
        )
        return m
