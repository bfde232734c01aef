"""Small circuits for formal proofs, with arbitrary values in place of computed numbers."""

import inspect
import types
from typing import Any

from amaranth.asserts import AnyConst, AnySeq
from amaranth.hdl import Assert, Assume, Cat, Const, Module, Mux, Shape, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from slackline.circuit.frame import Beat, _reader

_COMPUTING = ("Adder", "Widen", "Narrow", "Rounder", "Crc")


def gateware(home: Any, right: str = "", wrong: str = "") -> Any:
    """Return a fresh copy of a gateware module, with `right` replaced by `wrong` if given.

    Components that compute numbers have arbitrary outputs in the copy.
    """
    source = inspect.getsource(home)
    assert right == "" or source.count(right) == 1
    changed: Any = types.ModuleType(home.__name__)
    changed.__package__ = home.__package__
    text = source.replace(right, wrong) if right else source
    exec(compile(text, home.__file__, "exec"), vars(changed))
    for name in _COMPUTING:
        if hasattr(changed, name):
            setattr(changed, name, anything(getattr(changed, name)))
    if hasattr(changed, "FrameReader") and home is not _reader:
        changed.FrameReader = gateware(_reader).FrameReader
    return changed


def anything(original: Any) -> Any:
    """Return the component's class with outputs that take any value in every cycle."""

    class Anything(original):
        def elaborate(self, platform: object) -> Module:
            m = Module()
            for _, member, value in self.signature.flatten(self):
                if member.flow == Out and not isinstance(value, Const):
                    m.d.comb += Value.cast(value).eq(AnySeq(Shape.cast(member.shape)))
            return m

    return Anything


class Datapath(wiring.Component):
    """The issuer and the reducer, joined as in the node, with arbitrary frames and headers."""

    def __init__(self, issuer: Any, reducer: Any) -> None:
        self.issuer, self.reducer = issuer, reducer
        options = issuer.options
        members = self.issuer.signature.members
        self.free = (
            *("threshold", "local_ports", "agreed", "comparing"),
            *("fills", "finals", "absent"),
        )
        super().__init__(
            {
                **{name: members[name] for name in ("frames", *self.free)},
                "o": Out(stream.Signature(Beat(options.lanes))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.issuer = issuing = self.issuer
        m.submodules.reducer = reducing = self.reducer
        for name in self.free:
            outer, inner = getattr(self, name), getattr(issuing, name)
            pairs = (
                [(outer, inner)] if isinstance(outer, Signal) else zip(outer, inner, strict=True)
            )
            m.d.comb += [side.eq(free) for free, side in pairs]
        wiring.connect(m, wiring.flipped(self.frames), issuing.frames)
        wiring.connect(m, reducing.o, wiring.flipped(self.o))
        m.d.comb += [
            issuing.room.eq(reducing.room),
            reducing.absent.eq(self.absent),
            reducing.token.eq(issuing.token),
            reducing.uses_room.eq(issuing.uses_room),
        ]
        length = self.frames.payload.length
        longest = issuing.options.payload_bytes
        m.d.comb += Assume((length > 0) & (length <= longest))
        return m


class Order(wiring.Component):
    """A FIFO with assertions that its data come out in order.

    The written numbers count up, so the numbers that are read must count up too: nothing is lost,
    doubled or overtaken. The proof holds for any data, since the FIFO does not look at them.
    """

    def __init__(self, queue: Any) -> None:
        self.queue = queue
        super().__init__({"w_en": In(1), "r_en": In(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.queue = queue = self.queue
        written, read = Signal(queue.width), Signal(queue.width)
        within = Signal(range(queue.depth + 2))
        writes, reads = queue.w_en & queue.w_rdy, queue.r_en & queue.r_rdy
        m.d.comb += [queue.w_en.eq(self.w_en), queue.r_en.eq(self.r_en), queue.w_data.eq(written)]
        m.d.sync += [
            written.eq(written + writes),
            read.eq(read + reads),
            within.eq(within + writes - reads),
        ]
        m.d.comb += [
            Assert(within <= queue.depth),
            Assert(queue.level == within),
            Assert(~queue.r_rdy | (queue.r_data == read)),
        ]
        return m


class Levels(Order):
    """A FIFO with assertions about its level, which never exceeds the depth; data are ignored."""

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.queue = queue = self.queue
        within = Signal(range(queue.depth + 2))
        writes, reads = queue.w_en & queue.w_rdy, queue.r_en & queue.r_rdy
        m.d.comb += [queue.w_en.eq(self.w_en), queue.r_en.eq(self.r_en)]
        m.d.sync += within.eq(within + writes - reads)
        m.d.comb += [
            Assert(within <= queue.depth),
            Assert(queue.level == within),
            Assert(queue.r_rdy | (within <= 1)),
        ]
        return m


def keeps_the_rule(m: Module, payload: Value, valid: Value, ready: Value, *, inward: bool) -> None:
    """Add the rule of streams: a payload that is valid and not taken stays valid and unchanged.

    The rule is assumed for a stream that goes in (`inward`) and asserted for a stream that comes
    out. The other side of the stream is arbitrary.
    """
    held, waits = Signal(len(payload)), Signal()
    m.d.sync += [held.eq(payload), waits.eq(valid & ~ready)]
    rule = ~waits | (valid & (payload == held))
    m.d.comb += Assume(rule) if inward else Assert(rule)


def frees(m: Module, *inputs: Any) -> None:
    """Give the inputs arbitrary values in every cycle."""
    m.d.comb += [each.eq(AnySeq(each.shape())) for each in inputs]


class Guard(wiring.Component):
    """A circuit whose frames leave through a FrameOutlet and that is reset at any time.

    The circuit's stream keeps the rule of streams between its resets, and obeys no rule across one.
    """

    def __init__(self, outlet: Any) -> None:
        self.outlet = outlet
        super().__init__({})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.outlet = outlet = self.outlet
        frees(m, outlet.cut, outlet.i.valid, outlet.o.ready)
        m.d.comb += outlet.i.payload.eq(AnySeq(outlet.i.payload.as_value().shape()))
        payload, out = outlet.o.payload, outlet.o
        keeps_the_rule(m, payload.as_value(), out.valid, out.ready, inward=False)
        # A frame has the beats that were taken from the circuit, or ends as damaged. The circuit's
        # frames are of 3 beats: `at` counts those that were taken since a reset, `given` those that
        # left.
        at, given = Signal(2), Signal(2)
        taken, left = outlet.i.valid & outlet.i.ready, out.valid & out.ready
        m.d.comb += Assume(outlet.i.payload.last == (at == 2))
        m.d.comb += Assume(~outlet.i.payload.bad)
        with m.If(taken):
            m.d.sync += at.eq(Mux(at == 2, 0, at + 1))
        with m.If(outlet.cut):
            m.d.sync += at.eq(0)
        with m.If(left):
            m.d.sync += given.eq(Mux(payload.last, 0, given + 1))
            m.d.comb += Assert(~payload.last | payload.bad | (given == 2))
            m.d.comb += Assert((given < 2) | payload.last)
        within, ending, last = outlet.within, outlet.ending, payload.last
        m.d.comb += [
            Assert(Mux(within & ~ending, at == given + out.valid, at == 0)),
            Assert(~within | ((given + out.valid <= 2) & (given + out.valid != 0))),
            Assert(~out.valid | (last == ~within)),
            Assert(~(out.valid & last & ~payload.bad) | (given == 2)),
            Assert(out.valid | within | (given == 0)),
            Assert(given <= 2),
        ]
        return m


class Gate(wiring.Component):
    """A FrameInlet before a circuit that is reset at any time, with frames of 3 beats.

    The circuit sees the first beat of a frame only after a reset or after the last beat of a frame.
    """

    def __init__(self, inlet: Any) -> None:
        self.inlet = inlet
        super().__init__({})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.inlet = inlet = self.inlet
        i, o = inlet.i, inlet.o
        frees(m, inlet.cut, i.valid, o.ready)
        m.d.comb += i.payload.eq(AnySeq(i.payload.as_value().shape()))
        at, begun = Signal(2), Signal(2)
        m.d.comb += Assume(i.payload.last == (at == 2))
        with m.If(i.valid & i.ready):
            m.d.sync += at.eq(Mux(at == 2, 0, at + 1))
        with m.If(inlet.cut):
            m.d.sync += begun.eq(0)
            m.d.comb += Assert(~o.valid)
        with m.Elif(o.valid & o.ready):
            # Each beat that the circuit takes is the one that follows in the circuit's own frame.
            m.d.comb += Assert(begun == at)
            m.d.sync += begun.eq(Mux(o.payload.last, 0, begun + 1))
        return m


class Outlet(wiring.Component):
    """The buffer of sums, with arbitrary sums and requests, whose ports take frames at any pace."""

    def __init__(self, sums: Any) -> None:
        self.sums, self.options = sums, sums.options
        super().__init__({})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.sums = sums = self.sums
        frees(m, sums.begin, sums.sequence, sums.i.valid)
        m.d.comb += sums.i.payload.eq(AnySeq(sums.i.payload.as_value().shape()))
        m.d.comb += sums.absent.eq(AnyConst(self.options.ports))
        keeps_the_rule(m, sums.i.payload.as_value(), sums.i.valid, sums.i.ready, inward=True)
        for again, out in zip(sums.again, sums.o, strict=True):
            frees(m, again.valid, again.payload.as_value(), out.ready)
            keeps_the_rule(m, out.payload.as_value(), out.valid, out.ready, inward=False)
        return m


class AnyQueue(wiring.Component):
    """A model of any FIFO that keeps one promise: the data at its head stay until they are read."""

    def __init__(self, *, width: int, depth: int) -> None:
        super().__init__(
            {
                "w_en": In(1),
                "w_data": In(width),
                "w_rdy": Out(1),
                "r_en": In(1),
                "r_data": Out(width),
                "r_rdy": Out(1),
                "level": Out(range(depth + 1)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        frees(m, self.w_rdy, self.level, self.r_data, self.r_rdy)
        keeps_the_rule(m, self.r_data, self.r_rdy, self.r_en, inward=True)
        return m


def small_sum_buffer(home: Any, sender: Any) -> Any:
    """Return a buffer for frames of up to 4 beats, with arbitrary queues of numbers and requests.

    The buffer and its ports' senders come from the modules `home` and `sender`.
    """
    home.SyncFIFO = sender.SyncFIFO = AnyQueue
    home.Sender = sender.Sender
    small = types.SimpleNamespace(ports=2, lanes=1, slots=2, header_beats=1, slot_beats=2)
    return home.SumBuffer(small, ahead=2)


class Node(wiring.Component):
    """An aggregation node whose ranks and host behave arbitrarily."""

    def __init__(self, node: Any) -> None:
        self.node = node
        super().__init__({})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.node = node = self.node
        for rx, tx in zip(node.rx, node.tx, strict=True):
            frees(m, rx.valid, tx.ready)
            m.d.comb += rx.payload.eq(AnySeq(rx.payload.as_value().shape()))
        frees(m, node.bus.address, node.bus.write, node.bus.write_data)
        return m


class Registers(wiring.Component):
    """A bridge from AXI4-Lite to arbitrary registers, with a master that keeps the rule."""

    def __init__(self, bridge: Any) -> None:
        self.bridge = bridge
        super().__init__({})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.bridge = bridge = self.bridge
        i = bridge.i
        frees(m, i.awaddr, i.wdata, i.wstrb, i.araddr, i.awprot, i.arprot)
        frees(m, i.awvalid, i.wvalid, i.arvalid, i.bready, i.rready, bridge.o.read_data)
        for valid, ready, payload, inward in (
            (i.awvalid, i.awready, i.awaddr, True),
            (i.wvalid, i.wready, Cat(i.wdata, i.wstrb), True),
            (i.arvalid, i.arready, i.araddr, True),
            (i.bvalid, i.bready, i.bresp, False),
            (i.rvalid, i.rready, Cat(i.rdata, i.rresp), False),
        ):
            keeps_the_rule(m, payload, valid, ready, inward=inward)
        return m
