"""A comparison of the frames at the heads of all ports' queues, which must agree to be reduced."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from slackline.circuit.frame import Frame
from slackline.circuit.proof import claim

__all__ = ["Matcher"]


class Matcher(wiring.Component):
    """A comparator of the frames at the heads of all ports, which gives the frame to reduce.

    absent     a bit for each port that takes part in no sum
    heads      a stream of Frame for each port; one frame of each is taken in the same cycle
    o          stream of Frame: the frame to reduce, two cycles after the last port's frame came
    agreed     valid with `o`: all frames are equal; otherwise they must be dropped
    finals     valid with `o`: a bit for each port whose frame ends a message
    comparing  a frame is at every head, but `o` is not valid yet
    """

    def __init__(self, ports: int) -> None:
        self.ports = ports
        super().__init__(
            {
                "absent": In(ports),
                "heads": In(stream.Signature(Frame())).array(ports),
                "o": Out(stream.Signature(Frame())),
                "agreed": Out(1),
                "finals": Out(ports),
                "comparing": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        heads, absent = self.heads, self.absent
        first = heads[-1].payload.as_value()
        for port in reversed(range(self.ports - 1)):
            first = Mux(absent[port], first, heads[port].payload.as_value())
        alike = Signal(self.ports)
        compared = Signal()
        all_there = (Cat(*(head.valid for head in heads)) | absent).all()
        free = ~self.o.valid | self.o.ready
        m.d.sync += alike.eq(Cat(*(head.payload.as_value() == first for head in heads)) | absent)
        m.d.sync += compared.eq(all_there & ~compared)
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(compared & free):
            m.d.sync += [
                self.o.valid.eq(1),
                self.o.payload.as_value().eq(first),
                self.agreed.eq(alike.all()),
                self.finals.eq(Cat(*(head.payload.final for head in heads)) & ~absent),
            ]
        with m.Elif(compared):
            m.d.sync += compared.eq(1)
        m.d.comb += [head.ready.eq(compared & free) for head in heads]
        m.d.comb += self.comparing.eq(all_there & ~self.o.valid)
        # Frames that were compared stay at the heads until they are taken.
        claim(m, platform, ~compared | all_there)
        return m
