"""Stages at a circuit's edge, outside of its reset: every frame ends, whatever resets the circuit.

Without them, a circuit that is reset in the middle of a frame would withdraw a beat that it offers,
and would take the rest of an incoming frame for a new one.
"""

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from slackline.circuit.frame._layouts import Beat
from slackline.circuit.proof import claim

__all__ = ["FrameInlet", "FrameOutlet"]


class FrameOutlet(wiring.Component):
    """A register behind a circuit's output, which ends the frame that a reset of the circuit cuts.

    i    stream of Beat from the circuit
    cut  the circuit is reset in this cycle: nothing is taken from `i`
    o    stream of Beat, a cycle later

    A beat that is offered stays until it is taken. If the circuit is reset within a frame, the
    frame ends with one more beat, which is `last` and `bad`.
    """

    def __init__(self, lanes: int) -> None:
        beats = stream.Signature(Beat(lanes))
        self.within, self.ending = Signal(), Signal()
        """A frame was begun whose last beat is not here; that frame is to end as damaged."""
        super().__init__({"i": In(beats), "cut": In(1), "o": Out(beats)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        i, o = self.i, self.o
        within, ending = self.within, self.ending
        free, takes = Signal(), Signal()
        m.d.comb += [
            free.eq(~o.valid | o.ready),
            i.ready.eq(free & ~ending & ~self.cut),
            takes.eq(i.valid & i.ready),
        ]
        with m.If(o.ready):
            m.d.sync += o.valid.eq(0)
        with m.If(takes):
            m.d.sync += [o.valid.eq(1), o.payload.eq(i.payload), within.eq(~i.payload.last)]
        with m.Elif(ending & free):
            m.d.sync += [o.valid.eq(1), within.eq(0), ending.eq(0)]
            m.d.sync += [o.payload.data.eq(0), o.payload.last.eq(1), o.payload.bad.eq(1)]
        with m.Elif(self.cut & within):
            m.d.sync += ending.eq(1)
        claim(m, platform, ~ending | within)
        return m


class FrameInlet(wiring.Component):
    """A gate before a circuit's input, which drops the rest of a frame that a reset cuts.

    i    stream of Beat; not ready at a frame's start while the circuit is reset
    cut  the circuit is reset in this cycle: nothing is passed on
    o    stream of Beat to the circuit, in the same cycle
    """

    def __init__(self, lanes: int) -> None:
        beats = stream.Signature(Beat(lanes))
        super().__init__({"i": In(beats), "cut": In(1), "o": Out(beats)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        i, o = self.i, self.o
        within, drops = Signal(), Signal()
        m.d.comb += [
            o.payload.eq(i.payload),
            o.valid.eq(i.valid & ~drops & ~self.cut),
            i.ready.eq(drops | (o.ready & ~self.cut)),
        ]
        with m.If(i.valid & i.ready):
            m.d.sync += within.eq(~i.payload.last)
            with m.If(i.payload.last):
                m.d.sync += drops.eq(0)
        with m.If(self.cut & within & ~drops):
            m.d.sync += drops.eq(1)
        claim(m, platform, ~drops | within)
        return m
