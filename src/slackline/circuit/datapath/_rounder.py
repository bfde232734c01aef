"""The last stage of every datapath, which gives sums unchanged or rounded to 16-bit floats."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from slackline.circuit.datapath._halves import Narrow
from slackline.circuit.options import ELEMENT_BITS

__all__ = ["Rounder"]


class Rounder(wiring.Component):
    """A stage that gives sums LATENCY cycles later: unchanged in `wide`, rounded in `halves`.

    sums     a word of 32 bits for each lane
    element  the 16-bit type that `halves` is rounded to
    """

    LATENCY = Narrow.LATENCY

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        super().__init__(
            {
                "sums": In(32 * lanes),
                "element": In(ELEMENT_BITS),
                "wide": Out(32 * lanes),
                "halves": Out(16 * lanes),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        for k in range(self.lanes):
            m.submodules[f"narrow_{k}"] = narrow = Narrow()
            m.d.comb += [
                narrow.wide.eq(self.sums.word_select(k, 32)),
                narrow.element.eq(self.element),
                self.halves.word_select(k, 16).eq(narrow.half),
            ]
        later = [self.sums]
        for _ in range(self.LATENCY):
            later.append(Signal(32 * self.lanes, reset_less=True))
            m.d.sync += later[-1].eq(later[-2])
        m.d.comb += self.wide.eq(later[-1])
        return m
