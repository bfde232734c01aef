"""The circuits that claims are proved of: small, with any number where lanes compute one."""

import inspect
import types
from typing import Any

from amaranth.asserts import AnySeq
from amaranth.hdl import Assert, Assume, Cat, Const, Module, Shape, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from slackline.circuit import AggregationNode, _frame_reader
from slackline.circuit._frames import Beat

_COMPUTING = ("Adder", "Widen", "Narrow", "Rounder", "Crc")


def gateware(home: Any, right: str = "", wrong: str = "") -> Any:
    """A module of gateware anew, perhaps broken in one place, that computes no numbers."""
    source = inspect.getsource(home)
    assert right == "" or source.count(right) == 1
    changed: Any = types.ModuleType(home.__name__)
    changed.__package__ = home.__package__
    text = source.replace(right, wrong) if right else source
    exec(compile(text, home.__file__, "exec"), vars(changed))
    for name in _COMPUTING:
        if hasattr(changed, name):
            setattr(changed, name, anything(getattr(changed, name)))
    if hasattr(changed, "FrameReader") and home is not _frame_reader:
        changed.FrameReader = gateware(_frame_reader).FrameReader
    return changed


def anything(original: Any) -> Any:
    """The component with outputs that are anything in every cycle."""

    class Anything(original):
        def elaborate(self, platform: object) -> Module:
            m = Module()
            for _, member, value in self.signature.flatten(self):
                if member.flow == Out and not isinstance(value, Const):
                    m.d.comb += Value.cast(value).eq(AnySeq(Shape.cast(member.shape)))
            return m

    return Anything


class Datapath(wiring.Component):
    """Issuer and reducer as the node joins them; frames and headers are anything."""

    def __init__(self, issuer: Any, reducer: Any) -> None:
        self.issuer, self.reducer = issuer, reducer
        options = issuer.options
        members = self.issuer.signature.members
        self.free = ("threshold", "local_ports", "agreed", "comparing", "fills", "finals")
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
            reducing.token.eq(issuing.token),
            reducing.uses_room.eq(issuing.uses_room),
        ]
        length = self.frames.payload.length
        longest = issuing.options.payload_bytes
        m.d.comb += Assume((length > 0) & (length <= longest))
        return m


class Order(wiring.Component):
    """A FIFO beside what it stands for: the numbers that went in, in order.

    What is written counts up, so what is read must count up too: nothing is lost, doubled or
    overtaken, whatever the data are, since the FIFO does not look at them.
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
    """The same without the data: how many are within, and that none is taken beyond the depth."""

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
    """What is valid and not taken stays valid, with the same payload: needed of what goes in,
    to be proved of what comes out. The other side of the stream does as it likes.
    """
    held, waits = Signal(len(payload)), Signal()
    m.d.sync += [held.eq(payload), waits.eq(valid & ~ready)]
    rule = ~waits | (valid & (payload == held))
    m.d.comb += Assume(rule) if inward else Assert(rule)


def frees(m: Module, *inputs: Any) -> None:
    """Inputs that do as they like."""
    m.d.comb += [each.eq(AnySeq(each.shape())) for each in inputs]


class Outlet(wiring.Component):
    """The retainer and the broadcast behind it: what leaves a node."""

    def __init__(self, retainer: Any) -> None:
        self.retainer, self.options = retainer, retainer.options
        options = retainer.options
        super().__init__({"tx": Out(stream.Signature(Beat(options.lanes))).array(options.ports)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.retainer = sums = self.retainer
        frees(m, sums.begin, sums.sequence, sums.i.valid)
        m.d.comb += sums.i.payload.eq(AnySeq(sums.i.payload.as_value().shape()))
        for again in sums.again:
            frees(m, again.valid, again.payload)
        AggregationNode._broadcast(self, m, sums)
        keeps_the_rule(m, sums.i.payload.as_value(), sums.i.valid, sums.i.ready, inward=True)
        for out in self.tx:
            keeps_the_rule(m, out.payload.as_value(), out.valid, out.ready, inward=False)
        return m


class AnyQueue(wiring.Component):
    """What is claimed of every FIFO, and no more: what is at its head stays until it is read."""

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


def small_retainer(home: Any) -> Any:
    """A retainer of frames of up to 4 beats, whose numbers and requests come as they like."""
    home.SyncFIFO = AnyQueue
    small = types.SimpleNamespace(ports=2, lanes=1, slots=2, header_beats=1, slot_beats=2)
    return home.Retainer(small, ahead=2)


class Keeper(wiring.Component):
    """A retainer among sums that come as they like."""

    def __init__(self, home: Any) -> None:
        self.retainer = small_retainer(home)
        super().__init__({})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.retainer = sums = self.retainer
        frees(m, sums.begin, sums.sequence, sums.i.valid, sums.o.ready)
        m.d.comb += sums.i.payload.eq(AnySeq(sums.i.payload.as_value().shape()))
        for again in sums.again:
            frees(m, again.valid, again.payload)
        keeps_the_rule(m, sums.i.payload.as_value(), sums.i.valid, sums.i.ready, inward=True)
        return m


class Node(wiring.Component):
    """An aggregation node among ranks and a host that do as they like."""

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
    """An AXI4-Lite boundary between any master that keeps the rule, and any registers."""

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
