"""The aggregation node's datapath: adders in a chain over all ports; headers bypass the adders."""

from itertools import pairwise

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from slackline.circuit.datapath import Adder, Rounder, Widen, chosen_words, is_half, way_of
from slackline.circuit.frame import Beat
from slackline.circuit.node._issuer import Token
from slackline.circuit.options import NodeOptions, Way
from slackline.circuit.proof import claim, ones

__all__ = ["Reducer"]

_NEGATIVE_ZERO = 0x80000000
"""The fp32 number whose addition changes no number, not even +0 or -0."""
_READ = 1
"""Cycles from a token (control bits) to the word that the port's buffer returns for it."""


class Reducer(wiring.Component):
    """A chain of adders that sums the ports' words in rank order, a beat a cycle.

    The sum is ((x0 + x1) + x2) + ..., in every lane.

    token      the control token of the beat that begins in this cycle
    uses_room  the token's beat takes space in the output buffer
    room       a beat may begin: the output buffer has space for its result
    now        the token for each port. A port after port 1 gets the token Adder.LATENCY cycles
               after the previous port, so that the port's word meets the sum so far without a delay
               line
    words      each port's word, a cycle after `now`
    absent     a bit for each port that takes part in no sum; constant while beats are under way
    headers    stream of header beats; a token with `header` set takes the next one
    o          stream of Beat: reduced frames

    A beat comes out of the adders `latency` cycles after its token. The output buffer behind them
    adds two cycles.

    The twin (bit-exact Python model) is slackline.circuit.twins.reduce_in_rank_order.
    """

    def __init__(self, options: NodeOptions) -> None:
        self.options = options
        self.delays = [0, *(Adder.LATENCY * k for k in range(options.ports - 1))]
        into = _READ + Widen.LATENCY
        self.latency = self.delays[-1] + into + Adder.LATENCY + Rounder.LATENCY
        # The buffer holds twice the beats in flight, so a reader that is always ready gets a beat a
        # cycle.
        self.depth = 1 << (2 * self.latency).bit_length()
        self.tokens = [Signal(Token()) for _ in range(self.latency)]
        """Delay line of tokens (control bits of beats): entry k is the token that began k + 1
        cycles ago."""
        beat = 32 * options.lanes
        super().__init__(
            {
                "token": In(Token()),
                "uses_room": In(1),
                "room": Out(1),
                "now": Out(Token()).array(options.ports),
                "words": In(beat).array(options.ports),
                "absent": In(options.ports),
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
        with m.If(is_half(last.element)):
            m.d.comb += wide.eq(Cat(lower, halves))
        self._out(m, tokens, wide, platform)
        return m

    def _chain(self, m: Module, tokens: list[data.View]) -> list[Value]:
        """Return each lane's sum over all ports, Rounder.LATENCY cycles before the last token."""
        options = self.options
        wides: list[list[Value]] = []
        for port, delay in enumerate(self.delays):
            token = tokens[delay + _READ]
            half = is_half(token.element)
            wides.append([])
            for k, word in enumerate(chosen_words(self.words[port], token.second, half)):
                m.submodules[f"widen_{port}_{k}"] = widen = Widen()
                m.d.comb += [widen.word.eq(word), widen.element.eq(token.element)]
                later = tokens[delay + _READ + Widen.LATENCY]
                nothing = Mux(way_of(later.element) == Way.FLOAT, _NEGATIVE_ZERO, 0)
                wides[-1].append(Mux(self.absent[port], nothing, widen.wide))
        sums = wides[0]
        for port in range(1, options.ports):
            token = tokens[self.delays[port] + _READ + Widen.LATENCY]
            added = []
            for k in range(options.lanes):
                m.submodules[f"adder_{port}_{k}"] = adder = Adder()
                m.d.comb += [
                    adder.a.eq(sums[k]),
                    adder.b.eq(wides[port][k]),
                    adder.way.eq(way_of(token.element)),
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
            written.last.eq(last.last),
            results.w_en.eq(last.header | (last.payload & last.step)),
            self.headers.ready.eq(last.header),
            self.o.payload.eq(data.View(beat, results.r_data)),
            self.o.valid.eq(results.r_rdy),
            results.r_en.eq(self.o.ready),
        ]
        credits = Signal(range(self.depth + 1), init=self.depth)
        m.d.sync += credits.eq(credits - self.uses_room + (self.o.valid & self.o.ready))
        m.d.comb += self.room.eq(credits.any())
        # A result's place in the buffer is reserved in the cycle in which its beat begins. A 16-bit
        # type's beat takes two tokens and is written by the second, so `halved` counts the first.
        writes = Cat(each.header | (each.payload & each.step) for each in tokens[1:])
        halved = tokens[1].payload & ~tokens[1].step
        claim(
            m,
            platform,
            credits + results.level + ones(writes) + halved == self.depth,
            results.r_rdy | (results.level <= 1),
            ~results.w_en | results.w_rdy,
        )
