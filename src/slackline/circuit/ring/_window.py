"""The send window of one virtual channel: the state of each frame until it is acknowledged."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from slackline.circuit.frame import after, behind
from slackline.wire import FIRST_SEQUENCE

__all__ = ["RingWindow"]

_LIMIT_BITS = 40
"""Bits of the count of cycles without progress; the register `timeout` has 32."""


class RingWindow(wiring.Component):
    """A send window of at most `slots` frames, from the first unacknowledged frame on.

    begun     a frame gets the next number and slot, `begun_number` and `begun_slot`; only while
              there is `room`, or if it `redeems` a slot that was `claimed` for it
    claimed   a slot is reserved for a frame to come; only while there is `space`
    ready     the next begun frame may leave
    fresh     the frame in slot `fresh_slot` may leave for the first time
    again     the frame in slot `again_slot` is to leave once more
    taken     the frame of `fresh` leaves; `retaken`: the frame of `again` leaves
    answered  an ACK came: slots below `acknowledge` are free, and bit k of `arrived` tells that
              frame acknowledge + k is in its slot

    `space` is room for two frames, and prevents a deadlock round the ring. Each frame waits for a
    slot at the next NIC. If all slots were in use, each frame would wait for the frame ahead, and
    so for itself. A frame that enters the channel here must therefore leave one slot free. A frame
    that is forwarded needs only one slot, since it frees the slot that it leaves. One slot in the
    ring is therefore always free, and some frame can move. (Bubble flow control: Carrion, Beivide,
    Gregorio and Vallejo, A flow control mechanism to avoid message deadlock in k-ary n-cube
    networks, 1997.)

    A missing frame before frames that have arrived is sent again at once, but only once. After
    `timeout` cycles without progress, all frames that have not arrived are sent again. The first
    frame of the window is sent in any case, so that a lost ACK comes again. Each further turn
    without progress waits twice as long as the turn before.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        bits = ceil_log2(slots)
        super().__init__(
            {
                "timeout": In(32),
                "begun": In(1),
                "redeems": In(1),
                "claimed": In(1),
                "begun_number": Out(32, init=FIRST_SEQUENCE),
                "begun_slot": Out(bits),
                "room": Out(1),
                "space": Out(1),
                "ready": In(1),
                "fresh": Out(1),
                "fresh_slot": Out(bits),
                "again": Out(1),
                "again_slot": Out(bits),
                "taken": In(1),
                "retaken": In(1),
                "answered": In(1),
                "acknowledge": In(32),
                "arrived": In(64),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        slots = self.slots
        freed = Signal(32, init=FIRST_SEQUENCE)
        freed_slot = Signal(ceil_log2(slots))
        arrived = Signal(slots)
        # Frames from `freed` on: those that have begun, that may leave, and that have left.
        begun, ready, under_way = (Signal(range(slots + 1), name=n) for n in ("kept", "may", "out"))
        claims, used = Signal(range(slots + 1)), Signal(range(slots + 1))
        m.d.sync += claims.eq(claims + self.claimed - (self.begun & self.redeems))
        m.d.comb += [
            used.eq(begun + claims),
            self.room.eq(used < slots),
            self.space.eq(used + 1 < slots),
            self.fresh.eq(ready != under_way),
            self.fresh_slot.eq(freed_slot + under_way),
            self.begun_slot.eq(freed_slot + begun),
        ]
        with m.If(self.begun):
            m.d.sync += self.begun_number.eq(after(self.begun_number))

        progress = Signal()
        newly, done = Signal(32), Signal(range(slots + 1))
        m.d.comb += [
            newly.eq(behind(freed, self.acknowledge)),
            progress.eq(self.answered & newly.any() & (newly <= under_way)),
            done.eq(Mux(progress, newly, 0)),
        ]
        m.d.sync += [
            freed_slot.eq(freed_slot + done),
            begun.eq(begun + self.begun - done),
            ready.eq(ready + self.ready - done),
            under_way.eq(under_way + self.taken - done),
        ]
        with m.If(progress):
            m.d.sync += [freed.eq(self.acknowledge), arrived.eq(self.arrived)]
        with m.Elif(self.answered & ~newly.any()):
            m.d.sync += arrived.eq(arrived | self.arrived[:slots])

        # A sweep checks one frame after another, freed + step, and resends each missing frame.
        clock, limit = Signal(_LIMIT_BITS), Signal(_LIMIT_BITS)
        sweep, all_missing, hurried = Signal(), Signal(), Signal()
        step = Signal(range(slots + 1))
        above = Cat(arrived, 0) >> (step + 1)
        missing = ~Cat(arrived, 0).bit_select(step, 1)
        # A gap is a missing frame with frames behind it that have arrived.
        gap = Signal()
        m.d.comb += gap.eq((arrived & (arrived + 1)[:slots]).any())
        wanted = (missing & (all_missing | above.any())) | (all_missing & (step == 0))
        m.d.comb += [
            self.again.eq(sweep & (step < under_way) & wanted),
            self.again_slot.eq(freed_slot + step),
        ]
        with m.If(~under_way.any() | progress):
            m.d.sync += [clock.eq(0), limit.eq(Mux(self.timeout.any(), self.timeout, 1))]
        with m.Else():
            m.d.sync += clock.eq(clock + 1)
        with m.If(sweep):
            with m.If(step >= under_way):
                m.d.sync += sweep.eq(0)
            with m.Elif(~self.again | self.retaken):
                m.d.sync += step.eq(step + 1)
        with m.Elif(under_way.any() & (clock >= limit)):
            m.d.sync += [sweep.eq(1), all_missing.eq(1), step.eq(0), clock.eq(0)]
            with m.If(~limit[-1]):
                m.d.sync += limit.eq(limit << 1)
        with m.Elif(under_way.any() & gap & ~hurried):
            m.d.sync += [sweep.eq(1), all_missing.eq(0), step.eq(0), hurried.eq(1)]
        # An ACK moves `freed`, so a sweep in progress would check the wrong frames and is ended.
        with m.If(progress):
            m.d.sync += [sweep.eq(0), hurried.eq(0)]
        return m
