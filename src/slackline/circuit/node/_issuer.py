"""The aggregation node's scheduler, which starts messages' reductions and begins a beat a cycle."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from slackline.circuit.datapath import is_half
from slackline.circuit.frame import Frame, element_of
from slackline.circuit.options import ELEMENT_BITS, NodeOptions

__all__ = ["STALLS", "Issuer", "Token"]

STALLS = ("adder", "no_credit", "no_local_data", "no_peer_data", "onset")
"""Reasons why no beat begins in a cycle although there is work; exactly one applies at a time."""


class Token(data.StructLayout):
    """Control bits that travel through the adders beside a beat.

    header, payload  the beat belongs to the header; the beat belongs to the payload
    element          the Element of the payload
    second           the token is for the second half of a 16-bit type's beat
    step             the token ends its beat
    last             the beat is the last one of its frame
    skip             the frame at the head of every port's queue is dropped
    """

    def __init__(self) -> None:
        bits = ("header", "payload", "second", "step", "last", "skip")
        super().__init__({**dict.fromkeys(bits, 1), "element": ELEMENT_BITS})


class Issuer(wiring.Component):
    """The aggregation node's scheduler: it decides in each cycle which beat enters the adders.

    The reduction of a message starts once every port has `threshold` frames of the message or its
    last frame, or once a port's buffer is full without the last frame (`forced`). Threshold 0 is
    store-and-forward: every port must have the message's last frame. Within a message, the
    reduction of a frame begins as soon as every port has the frame.

    absent              a bit for each port that takes part in no sum
    frames, agreed      from the Matcher; a frame is taken when it begins
    fills, finals       frames in each port's buffer; the number of those frames that end a message
    room                a beat may begin: the output buffer has space for its result
    token               the Token of this cycle; with `uses_room`, its beat takes space in the
                        output buffer
    begun, begun_frame  a frame begins or is dropped, and its header fields
    reduced             a frame begins and is not dropped
    stalls              a bit for each of STALLS
    starved             a bit for each port whose lack of data is the reason
    awaited             a bit for the port that alone has no frame, while no beat begins
    """

    def __init__(self, options: NodeOptions) -> None:
        self.options = options
        count = range(options.slots + 1)
        self.active = Signal()
        """The first beat of the current frame has begun, and the frame's last beat has not."""
        self.headers = Signal(range(options.header_beats + 1))
        """Beats of the current frame's header that have not begun."""
        self.beats = Signal(range(options.slot_beats + 1))
        """Beats of the current frame's payload that have not begun."""
        super().__init__(
            {
                "threshold": In(32),
                "local_ports": In(options.ports),
                "absent": In(options.ports),
                "frames": In(stream.Signature(Frame())),
                "agreed": In(1),
                "comparing": In(1),
                "fills": In(count).array(options.ports),
                "finals": In(count).array(options.ports),
                "room": In(1),
                "token": Out(Token()),
                "uses_room": Out(1),
                "begun": Out(1),
                "reduced": Out(1),
                "begun_frame": Out(Frame()),
                "forced": Out(1),
                "stalls": Out(data.StructLayout(dict.fromkeys(STALLS, 1))),
                "starved": Out(options.ports),
                "awaited": Out(options.ports),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        options = self.options
        frame = self.frames.payload
        active, started, headers = self.active, Signal(), self.headers
        beats = self.beats
        element = Signal(ELEMENT_BITS)
        second = Signal()
        onset, forced = self._onset(m)

        half = is_half(element)
        go, ends = Signal(), Signal()
        step = second | ~half
        final_header = (headers == 1) & (beats == 0)
        m.d.comb += [
            go.eq(active & (second | self.room)),
            ends.eq(go & Mux(headers.any(), final_header, step & (beats == 1))),
            self.token.header.eq(go & headers.any()),
            self.token.payload.eq(go & ~headers.any()),
            self.token.second.eq(second),
            self.token.step.eq(step),
            self.token.last.eq(Mux(headers.any(), final_header, beats == 1)),
            self.token.element.eq(element),
            self.uses_room.eq(go & ~second),
        ]
        with m.If(self.token.header):
            m.d.sync += headers.eq(headers - 1)
        with m.If(self.token.payload):
            m.d.sync += second.eq(half & ~second)
            with m.If(step):
                m.d.sync += beats.eq(beats - 1)
        with m.If(ends):
            m.d.sync += active.eq(0)

        # The next frame may begin in the same cycle as the last beat of the previous frame, unless
        # that cycle's token must drop the next frame.
        may = self.frames.valid & (started | onset | forced)
        m.d.comb += [
            self.begun.eq(may & Mux(self.agreed, ends | ~active, ~active)),
            self.reduced.eq(self.begun & self.agreed),
            self.begun_frame.eq(frame),
            self.frames.ready.eq(self.begun),
            self.forced.eq(self.begun & ~started & ~onset),
            self.token.skip.eq(self.begun & ~self.agreed),
        ]
        with m.If(self.begun):
            m.d.sync += started.eq(~frame.final)
        length = (frame.length + (options.beat_bytes - 1)) >> ceil_log2(options.beat_bytes)
        with m.If(self.begun):
            m.d.sync += [
                active.eq(1),
                second.eq(0),
                headers.eq(options.header_beats),
                beats.eq(Mux(self.agreed, length, 0)),
                element.eq(element_of(frame.dtype)),
            ]
        self._count(m, active, go, second, started)
        return m

    def _onset(self, m: Module) -> tuple[Signal, Signal]:
        """Return the signals by which the reduction of a message may start.

        The first is 1 if all ports have reached the onset threshold, the second is 1 if a full
        buffer forces a start. Both signals describe the previous cycle. That is safe, because until
        the start of a message the number of frames in a port's buffer only grows.
        """
        options = self.options
        onset, forced = Signal(), Signal()
        ready, stuck = [], []
        for fill, finals, absent in zip(self.fills, self.finals, self.absent, strict=True):
            reached = self.threshold.any() & (fill >= self.threshold)
            ready.append(reached | finals.any() | absent)
            stuck.append((fill == options.slots) & ~finals.any() & ~absent)
        m.d.sync += [
            onset.eq(Cat(*ready).all() & ~self.begun),
            forced.eq(Cat(*stuck).any() & ~self.begun),
        ]
        return onset, forced

    def _count(
        self, m: Module, active: Signal, go: Signal, second: Signal, started: Signal
    ) -> None:
        empty = Cat(*(fill == 0 for fill in self.fills)) & ~self.absent
        stalls = self.stalls
        with m.If(active):
            m.d.comb += [
                stalls.adder.eq(go & second),
                stalls.no_credit.eq(~go),
            ]
        with m.Elif(~self.begun):
            with m.If(self.comparing):
                m.d.comb += stalls.adder.eq(1)
            with m.Elif(started):
                m.d.comb += self.starved.eq(empty)
                with m.If((empty & ~self.local_ports).any()):
                    m.d.comb += stalls.no_peer_data.eq(1)
                with m.Elif(empty.any()):
                    m.d.comb += stalls.no_local_data.eq(1)
                with m.Else():
                    m.d.comb += stalls.adder.eq(1)
            with m.Elif(~(empty | self.absent).all()):
                m.d.comb += stalls.onset.eq(1)
        for port in range(self.options.ports):
            others = Cat(empty[:port], empty[port + 1 :])
            alone = empty[port] & ~others.any() & ~self.begun & ~active
            m.d.comb += self.awaited[port].eq(alone)
