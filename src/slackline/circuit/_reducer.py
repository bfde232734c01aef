"""The datapath: the words of all ports through a chain of adders, headers beside them."""

from itertools import pairwise

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from slackline.circuit._adder import Adder
from slackline.circuit._claims import claim, ones
from slackline.circuit._formats import Element
from slackline.circuit._frames import Beat
from slackline.circuit._halves import Widen
from slackline.circuit._issuer import Token
from slackline.circuit._lanes import chosen_words
from slackline.circuit._options import NodeOptions
from slackline.circuit._rounder import Rounder

__all__ = ["Reducer"]

_READ = 1
"""Cycles from a token to its word."""


class Reducer(wiring.Component):
    """Adds the ports' words in rank order, ((x0 + x1) + x2) + ..., a beat a cycle.

    token    what begins now
    now      the token as each port sees it: port k > 1 is Adder.LATENCY cycles behind port k - 1,
             so that its word meets the sum of the ports before it, and no delay line is needed
    words    a cycle after `now`: the port's word
    headers  stream of beats that header tokens take, in order
    o        stream of Beat: reduced frames; `room`: a beat may be begun, it will find its place

    A beat comes out `latency` cycles after its token, and two more for the buffer behind.
    Twin: slackline.circuit.twins.reduce_in_rank_order.
    """

    def __init__(self, options: NodeOptions) -> None:
        self.options = options
        self.delays = [0, *(Adder.LATENCY * k for k in range(options.ports - 1))]
        into = _READ + Widen.LATENCY
        self.latency = self.delays[-1] + into + Adder.LATENCY + Rounder.LATENCY
        # Twice what is under way: a reader that is always ready gets a beat a cycle.
        self.depth = 1 << (2 * self.latency).bit_length()
        self.tokens = [Signal(Token()) for _ in range(self.latency)]
        """What began so many cycles ago, less one."""
        beat = 32 * options.lanes
        super().__init__(
            {
                "token": In(Token()),
                "uses_room": In(1),
                "room": Out(1),
                "now": Out(Token()).array(options.ports),
                "words": In(beat).array(options.ports),
                "headers": In(stream.Signature(beat)),
                "o": Out(stream.Signature(Beat(options.lanes))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        tokens = [self.token, *self.tokens]
        m.d.sync += [later.eq(sooner) for sooner, later in pairwise(tokens)]
        for k, delay in enumerate(self.delays):
            m.d.comb += self.now[k].eq(tokens[delay])
        sums = self._chain(m, tokens)

        last = tokens[-1]
        lanes = self.options.lanes
        m.submodules.rounder = rounder = Rounder(lanes)
        halves, wide = rounder.halves, Signal(32 * lanes)
        m.d.comb += [
            rounder.sums.eq(Cat(*sums)),
            rounder.element.eq(tokens[-1 - Rounder.LATENCY].element),
        ]
        lower = Signal(16 * lanes, reset_less=True)
        with m.If(last.payload & ~last.second):
            m.d.sync += lower.eq(halves)
        m.d.comb += wide.eq(rounder.wide)
        with m.If(last.element >= Element.BFLOAT16):
            m.d.comb += wide.eq(Cat(lower, halves))
        self._out(m, tokens, wide, platform)
        return m

    def _chain(self, m: Module, tokens: list[data.View]) -> list[Signal]:
        """Sums of all ports, a lane each, Rounder.LATENCY before the end of the tokens."""
        options = self.options
        wides: list[list[Signal]] = []
        for port, delay in enumerate(self.delays):
            token = tokens[delay + _READ]
            half = token.element >= Element.BFLOAT16
            wides.append([])
            for k, word in enumerate(chosen_words(self.words[port], token.second, half)):
                m.submodules[f"widen_{port}_{k}"] = widen = Widen()
                m.d.comb += [widen.word.eq(word), widen.element.eq(token.element)]
                wides[-1].append(widen.wide)
        sums = wides[0]
        for port in range(1, options.ports):
            token = tokens[self.delays[port] + _READ + Widen.LATENCY]
            added = []
            for k in range(options.lanes):
                m.submodules[f"adder_{port}_{k}"] = adder = Adder()
                m.d.comb += [
                    adder.a.eq(sums[k]),
                    adder.b.eq(wides[port][k]),
                    adder.integer.eq(token.element == Element.INT32),
                ]
                added.append(adder.sum)
            sums = added
        return sums

    def _out(self, m: Module, tokens: list[data.View], wide: Signal, platform: object) -> None:
        last = tokens[-1]
        lanes = self.options.lanes
        beat = Beat(lanes)
        m.submodules.results = results = SyncFIFOBuffered(width=beat.size, depth=self.depth)
        written = data.View(beat, results.w_data)
        m.d.comb += [
            written.data.eq(Mux(last.header, self.headers.payload, wide)),
            written.last.eq(last.last & last.payload),
            results.w_en.eq(last.header | (last.payload & last.step)),
            self.headers.ready.eq(last.header),
            self.o.payload.eq(data.View(beat, results.r_data)),
            self.o.valid.eq(results.r_rdy),
            results.r_en.eq(self.o.ready),
        ]
        credits = Signal(range(self.depth + 1), init=self.depth)
        m.d.sync += credits.eq(credits - self.uses_room + (self.o.valid & self.o.ready))
        m.d.comb += self.room.eq(credits.any())
        # Every result has its place from the cycle in which its beat is begun; that of a half
        # type's first token is its second one's.
        writes = Cat(each.header | (each.payload & each.step) for each in tokens[1:])
        halved = tokens[1].payload & ~tokens[1].step
        claim(
            m,
            platform,
            credits + results.level + ones(writes) + halved == self.depth,
            results.r_rdy | (results.level <= 1),
            ~results.w_en | results.w_rdy,
        )
