"""Flow control of a ring NIC: ACKs and GRANTs to the predecessor, and from the successor."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from slackline.circuit.frame import HEADER, Beat, FrameReader
from slackline.circuit.options import RingOptions
from slackline.circuit.ring._layouts import Key, compose, seal
from slackline.circuit.ring._place import Place
from slackline.wire import MAGIC, VERSION, FrameKind

__all__ = ["RingFlowReceiver", "RingFlowSender"]


class RingFlowSender(wiring.Component):
    """A sender of a ring NIC's ACKs and GRANTs to the predecessor, one header at a time.

    changed        of each channel: an ACK is due
    base, arrived  the RingReceiver's state at the time when the ACK is made
    grants         stream of Key: operations to grant
    o              stream of Beat: the headers
    """

    def __init__(self, options: RingOptions) -> None:
        self.options = options
        super().__init__(
            {
                "place": In(Place()),
                "changed": In(2),
                "base": In(32).array(2),
                "arrived": In(options.slots).array(2),
                "grants": In(stream.Signature(Key())),
                "o": Out(stream.Signature(Beat(options.lanes))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        options = self.options
        due = Signal(2)
        told = Signal(2)
        m.d.sync += due.eq((due & ~told) | self.changed)
        acks, side = due.any(), due[1]
        header, sealed = Signal(HEADER), Signal(HEADER)
        making = Signal()
        compose(
            m,
            header,
            self.place,
            kind=Mux(acks, FrameKind.ACK, FrameKind.GRANT),
            acknowledge=Mux(acks, Mux(side, self.base[1], self.base[0]), 0),
            tag=Mux(acks, Mux(side, self.arrived[1], self.arrived[0]), self.grants.payload.tag),
            chunk=Mux(acks, 0, self.grants.payload.chunk),
            # A GRANT with an offset other than 0 permits the predecessor to send all of the
            # operation. With offset 0 a GRANT is a request.
            offset=Mux(acks, 0, (1 << 64) - 1),
            flags=Cat(acks & ~side, Const(0, 7), self.place.plan),
        )
        made = seal(m, header, making)
        at = Signal(range(options.header_beats))
        last = at == options.header_beats - 1
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += making.eq(acks | self.grants.valid)
                with m.If(acks):
                    m.d.comb += told.eq(Mux(side, 2, 1))
                with m.Else():
                    m.d.comb += self.grants.ready.eq(1)
                with m.If(making):
                    m.next = "CHECK"
            with m.State("CHECK"):
                m.next = "SEAL"
            with m.State("SEAL"):
                m.d.sync += sealed.eq(made)
                m.next = "SEND"
            with m.State("SEND"):
                m.d.comb += [
                    self.o.valid.eq(1),
                    self.o.payload.data.eq(sealed.as_value()[: 32 * options.lanes]),
                    self.o.payload.last.eq(last),
                ]
                with m.If(self.o.ready):
                    m.d.sync += [
                        at.eq(Mux(last, 0, at + 1)),
                        sealed.as_value().eq(sealed.as_value() >> 32 * options.lanes),
                    ]
                    with m.If(last):
                        m.next = "IDLE"
        return m


class RingFlowReceiver(wiring.Component):
    """A receiver of a ring NIC's ACKs and GRANTs from the successor; any other frame is `dropped`.

    acks     stream of headers
    granted  stream of Key; a GRANT that comes while the queue is full is lost, and requested again
    """

    def __init__(self, options: RingOptions) -> None:
        self.options = options
        super().__init__(
            {
                "place": In(Place()),
                "i": In(stream.Signature(Beat(options.lanes))),
                "acks": Out(stream.Signature(HEADER, always_ready=True)),
                "granted": Out(stream.Signature(Key())),
                "dropped": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        place = self.place
        m.submodules.reader = reader = FrameReader(self.options)
        # The queue has room for a grant of every operation, because all may be granted at once.
        depth = max(8, self.options.operations)
        m.submodules.queue = queue = SyncFIFO(width=Key().size, depth=depth)
        header = Signal(HEADER)
        closed, right, ack = Signal(), Signal(), Signal()
        damaged = Signal()
        m.d.comb += [
            self.i.ready.eq(1),
            reader.beat.eq(self.i.payload),
            reader.taken.eq(self.i.valid),
            self.acks.payload.eq(header),
            self.acks.valid.eq(closed & right & ack),
            self.dropped.eq(closed & ~right),
            queue.w_data.eq(Cat(header.tag, header.chunk)),
            queue.w_en.eq(closed & right & ~ack),
            self.granted.payload.as_value().eq(queue.r_data),
            self.granted.valid.eq(queue.r_rdy),
            queue.r_en.eq(self.granted.ready),
        ]
        said = reader.header
        m.d.sync += [
            header.eq(said),
            closed.eq(reader.closing),
            damaged.eq(self.i.payload.bad),
            ack.eq(said.kind == FrameKind.ACK),
            right.eq(
                reader.intact
                & reader.cut
                & ~damaged
                & (said.magic == MAGIC)
                & (said.version == VERSION)
                & (
                    (said.kind == FrameKind.ACK)
                    | ((said.kind == FrameKind.GRANT) & said.offset.any())
                )
                & (said.job == place.job)
                & (said.epoch == place.epoch)
                & (said.source == place.successor)
                & (said.flags[8:] == place.plan)
            ),
        ]
        return m
