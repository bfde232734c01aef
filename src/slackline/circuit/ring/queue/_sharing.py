"""Arbiters that let two circuits, the users, share one DMA interface of the host's memory."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from slackline.circuit.frame import Beat
from slackline.circuit.ring._layouts import DmaRequest

__all__ = ["SharedReads", "SharedWrites"]

_REQUESTS = stream.Signature(DmaRequest())


class _Turns(wiring.Component):
    """An arbiter that merges two users' requests into one stream; user 1 has priority.

    asked        streams of DmaRequest of both users
    o            stream of DmaRequest; a request that is offered stays
    known, user  some request's data have not all passed; the user of the oldest such request
    ended        the last beat of the oldest such request passes
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        super().__init__(
            {
                "asked": In(_REQUESTS).array(2),
                "o": Out(_REQUESTS),
                "known": Out(1),
                "user": Out(1),
                "ended": In(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.order = order = SyncFIFO(width=1, depth=self.depth)
        first, other = self.asked
        waits, held, user = Signal(), Signal(), Signal()
        # A request that is offered must not change, so a later request of the other user waits.
        m.d.comb += [
            user.eq(Mux(waits, held, other.valid)),
            self.o.valid.eq(Mux(user, other.valid, first.valid) & order.w_rdy),
            self.o.payload.eq(Mux(user, other.payload.as_value(), first.payload.as_value())),
            first.ready.eq(~user & self.o.ready & order.w_rdy),
            other.ready.eq(user & self.o.ready & order.w_rdy),
            order.w_data.eq(user),
            order.w_en.eq(self.o.valid & self.o.ready),
            self.known.eq(order.r_rdy),
            self.user.eq(order.r_data),
            order.r_en.eq(self.ended),
        ]
        m.d.sync += [waits.eq(self.o.valid & ~self.o.ready), held.eq(user)]
        return m


class _Shared(wiring.Component):
    """The part of an arbiter that merges two users' requests; subclasses pass on the data.

    asked     streams of DmaRequest of both users
    requests  stream of DmaRequest
    """

    def __init__(self, depth: int, data: dict[str, wiring.Member]) -> None:
        """Create the arbiter of `depth` open requests, with the streams `data`."""
        self.depth = depth
        super().__init__({"asked": In(_REQUESTS).array(2), "requests": Out(_REQUESTS), **data})

    def _turns(self, m: Module) -> _Turns:
        """Add the order of the requests to `m`, connect it to the requests and return it."""
        m.submodules.turns = turns = _Turns(self.depth)
        for mine, inner in zip(self.asked, turns.asked, strict=True):
            wiring.connect(m, wiring.flipped(mine), inner)
        wiring.connect(m, turns.o, wiring.flipped(self.requests))
        return turns


class SharedReads(_Shared):
    """An arbiter for reads: two users share one stream of requests and one stream of data.

    The data come in the order of the requests.

    asked     streams of DmaRequest of both users
    beats     streams of Beat for both users, always ready
    requests  stream of DmaRequest
    i         stream of Beat, `last` at the end of each request
    """

    def __init__(self, lanes: int, depth: int) -> None:
        beats = stream.Signature(Beat(lanes))
        super().__init__(depth, {"beats": Out(beats).array(2), "i": In(beats)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        turns = self._turns(m)
        i = self.i
        m.d.comb += [i.ready.eq(1), turns.ended.eq(i.valid & i.payload.last)]
        for user, out in enumerate(self.beats):
            m.d.comb += [out.payload.eq(i.payload), out.valid.eq(i.valid & (turns.user == user))]
        return m


class SharedWrites(_Shared):
    """An arbiter for writes: two users share one stream of requests and one stream of data.

    The data leave in the order of the requests.

    asked     streams of DmaRequest of both users
    beats     streams of Beat of both users
    requests  stream of DmaRequest
    o         stream of Beat
    """

    def __init__(self, lanes: int, depth: int) -> None:
        beats = stream.Signature(Beat(lanes))
        super().__init__(depth, {"beats": In(beats).array(2), "o": Out(beats)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        turns = self._turns(m)
        o, (first, other) = self.o, self.beats
        user = turns.user
        m.d.comb += [
            o.valid.eq(turns.known & Mux(user, other.valid, first.valid)),
            o.payload.eq(Mux(user, other.payload.as_value(), first.payload.as_value())),
            first.ready.eq(turns.known & ~user & o.ready),
            other.ready.eq(turns.known & user & o.ready),
            turns.ended.eq(o.valid & o.ready & o.payload.last),
        ]
        return m
