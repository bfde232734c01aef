"""The first stage of every receiver: a parser of a frame's beats into header and payload."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from slackline.circuit.frame._crc import Crc
from slackline.circuit.frame._layouts import HEADER, Beat
from slackline.circuit.options import BeatSizes
from slackline.circuit.proof import claim

__all__ = ["FrameReader"]


class FrameReader(wiring.Component):
    """A parser of a stream of frames, which separates each frame's header from its payload.

    beat, taken  the next beat of the stream, in each cycle in which `taken` is high
    header       the frame's header, from the cycle after its last beat until the next frame's first
    intact       valid with `header`: its checksum is right
    headed       a pulse when `header` becomes valid
    in_payload   the next beat is one of payload
    within       a frame has begun and not ended
    writes       the beat is number `count` of the payload, and not beyond the longest payload
    closing      a pulse in the cycle after the frame's last beat. `count` is then the number of
                 payload beats, or one more than the longest payload has if the frame is longer
    cut          valid with `closing`: the frame has no payload
    """

    def __init__(self, options: BeatSizes) -> None:
        self.options = options
        super().__init__(
            {
                "beat": In(Beat(options.lanes)),
                "taken": In(1),
                "header": Out(HEADER),
                "intact": Out(1),
                "headed": Out(1),
                "in_payload": Out(1),
                "within": Out(1),
                "writes": Out(1),
                "count": Out(range(options.slot_beats + 2)),
                "closing": Out(1),
                "cut": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        options, beat, taken, count = self.options, self.beat, self.taken, self.count
        in_payload = self.in_payload
        at = Signal(range(options.header_beats + 1))
        m.submodules.crc = crc = Crc(options.beat_bytes)
        m.d.comb += [
            crc.data.eq(beat.data),
            crc.valid.eq(taken & ~in_payload),
            crc.start.eq(~in_payload & (at == 0)),
            self.intact.eq(crc.intact),
            self.within.eq(in_payload | (at != 0)),
        ]
        m.d.sync += self.headed.eq(taken & ~in_payload & (at == options.header_beats - 1))
        with m.If(taken & ~in_payload):
            # Beats shift in at the top, so that the first beat ends at the bottom.
            whole = Cat(self.header.as_value(), beat.data)[32 * options.lanes :]
            m.d.sync += [self.header.eq(whole), at.eq(at + 1), count.eq(0), self.cut.eq(beat.last)]
            with m.If(at == options.header_beats - 1):
                m.d.sync += [at.eq(0), in_payload.eq(~beat.last)]
            with m.Elif(beat.last):
                m.d.sync += at.eq(0)

        # Beyond the longest payload the count rises by only one, which suffices to detect that the
        # frame is too long.
        m.d.comb += self.writes.eq(taken & in_payload & (count < options.slot_beats))
        with m.If(self.writes | (taken & in_payload & (count == options.slot_beats))):
            m.d.sync += count.eq(count + 1)
        with m.If(taken & in_payload & beat.last):
            m.d.sync += in_payload.eq(0)
        m.d.sync += self.closing.eq(taken & beat.last)
        claim(m, platform, ~in_payload | (at == 0))
        return m
