"""When a message's reduction starts, and what the datapath does in each cycle."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from slackline.circuit._formats import Element
from slackline.circuit._frames import Frame, element_of
from slackline.circuit._options import NodeOptions

__all__ = ["STALLS", "Issuer", "Token"]

STALLS = ("adder", "no_credit", "no_local_data", "no_peer_data", "onset")
"""Why a cycle begins no beat although there is work; exactly one at a time."""


class Token(data.StructLayout):
    """What travels beside the data: {header, payload: one of them or neither; element; second:
    the second half of a half type's beat; step: the beat is done; last: so is the frame;
    skip: the frame at every port's head is dropped}.
    """

    def __init__(self) -> None:
        bits = ("header", "payload", "second", "step", "last", "skip")
        super().__init__({**dict.fromkeys(bits, 1), "element": 2})


class Issuer(wiring.Component):
    """Begins a beat in every cycle in which there is data, room and a lane.

    A message starts once every port has `threshold` frames or the message's last one, or once a
    port's buffer is full without it (`forced`). Threshold 0 is store-and-forward: only the
    message's last frame counts. Within a message each frame begins as soon as every port has it.

    frames, agreed     from the Matcher; a frame is taken when it begins
    fills, finals      of the ports' buffers
    room               beats that may still be begun before results leave
    token              what to do now; `uses_room` if a beat of it comes out
    begun, begun_frame a frame begins (dropped ones too), and which; `reduced`: it is not dropped
    stalls             a bit for each of STALLS; `starved` for each port whose lack of data it is
    """

    def __init__(self, options: NodeOptions) -> None:
        self.options = options
        count = range(options.slots + 1)
        self.active = Signal()
        """A frame is begun, and its last beat is not."""
        self.headers = Signal(range(options.header_beats + 1))
        """Beats of its header that are not begun."""
        super().__init__(
            {
                "threshold": In(32),
                "local_ports": In(options.ports),
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
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        options = self.options
        frame = self.frames.payload
        active, started, headers = self.active, Signal(), self.headers
        beats = Signal(range(options.slot_beats + 1))
        element = Signal(2)
        second = Signal()
        onset, forced = self._onset(m)

        half = element >= Element.BFLOAT16
        go, ends = Signal(), Signal()
        step = second | ~half
        m.d.comb += [
            go.eq(active & (second | self.room)),
            ends.eq(go & ~headers.any() & step & (beats == 1)),
            self.token.header.eq(go & headers.any()),
            self.token.payload.eq(go & ~headers.any()),
            self.token.second.eq(second),
            self.token.step.eq(step),
            self.token.last.eq(beats == 1),
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

        # The next frame begins with the last beat of the one before.
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
        with m.If(self.reduced):
            m.d.sync += [
                active.eq(1),
                second.eq(0),
                headers.eq(options.header_beats),
                beats.eq(
                    (frame.length + (options.beat_bytes - 1)) >> ceil_log2(options.beat_bytes)
                ),
                element.eq(element_of(frame.dtype)),
            ]
        self._count(m, active, go, second, started)
        return m

    def _onset(self, m: Module) -> tuple[Signal, Signal]:
        """Whether a message may start, of the cycle before: fills only grow until it does."""
        options = self.options
        onset, forced = Signal(), Signal()
        ready, stuck = [], []
        for fill, finals in zip(self.fills, self.finals, strict=True):
            reached = self.threshold.any() & (fill >= self.threshold)
            ready.append(reached | finals.any())
            stuck.append((fill == options.slots) & ~finals.any())
        m.d.sync += [
            onset.eq(Cat(*ready).all() & ~self.begun),
            forced.eq(Cat(*stuck).any() & ~self.begun),
        ]
        return onset, forced

    def _count(
        self, m: Module, active: Signal, go: Signal, second: Signal, started: Signal
    ) -> None:
        empty = Cat(*(fill == 0 for fill in self.fills))
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
            with m.Elif(~empty.all()):
                m.d.comb += stalls.onset.eq(1)
