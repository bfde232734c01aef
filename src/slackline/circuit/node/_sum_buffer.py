"""The buffer of recent sums, from which each port takes its frames, and takes lost ones again."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from slackline.circuit.frame import Beat
from slackline.circuit.node._sender import Ended, Repeat, Sender, sum_beats
from slackline.circuit.options import NodeOptions
from slackline.circuit.proof import SentSums

__all__ = ["SumBuffer"]


class SumBuffer(wiring.Component):
    """A buffer of the last `slots` reduced frames, which every port reads at its own pace.

    i         stream of Beat: reduced frames; not ready while a port has yet to take the frame whose
              slot comes next
    begin     a frame that `i` will give has begun; `sequence` is its number
    absent    a bit for each port that takes no frames
    again     of each port: a stream of Repeat, the frames that the port wants again
    o         of each port: a stream of Beat
    resent    of each port, a pulse: a frame is sent again
    untaken   of each port: a frame waits for this port alone

    A port may take a beat two cycles after `i` gave it. Requests are served between frames, at the
    port that made them and at a beat a cycle. A request for a frame that is no longer kept, not
    complete, or yet to be sent has no effect.
    """

    def __init__(self, options: NodeOptions, ahead: int) -> None:
        """Size the queue for up to `ahead` cycles from `begin` to a frame's first beat."""
        self.options = options
        self.ahead = ahead
        ports = options.ports
        beats = stream.Signature(Beat(options.lanes))
        repeats = stream.Signature(Repeat(options), always_ready=True)
        super().__init__(
            {
                "i": In(beats),
                "begin": In(1),
                "sequence": In(32),
                "absent": In(ports),
                "again": In(repeats).array(ports),
                "o": Out(beats).array(ports),
                "resent": Out(ports),
                "untaken": Out(ports),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        options = self.options
        slots, slot_bits = options.slots, ceil_log2(options.slots)
        m.submodules.sums = sums = Memory(
            shape=Beat(options.lanes), depth=slots * sum_beats(options), init=[]
        )
        m.submodules.ended = ended = Memory(shape=Ended(options), depth=slots, init=[])
        m.submodules.begun = begun = SyncFIFO(width=32, depth=2 * self.ahead)
        write, end = sums.write_port(), ended.write_port()
        written, beat = Signal(slot_bits + 1), Signal(range(sum_beats(options)))
        slot, kept, moved = written[:slot_bits], Signal(slots), Signal()
        senders = []
        for port in range(options.ports):
            m.submodules[f"sender_{port}"] = sender = Sender(options)
            senders.append(sender)
            read, look = sums.read_port(), ended.read_port(domain="comb")
            wiring.connect(m, wiring.flipped(self.again[port]), sender.again)
            wiring.connect(m, sender.o, wiring.flipped(self.o[port]))
            m.d.comb += [
                sender.absent.eq(self.absent[port]),
                sender.written.eq(written),
                sender.beat.eq(beat),
                sender.moved.eq(moved),
                sender.kept.eq(kept),
                look.addr.eq(sender.slot),
                sender.ended.eq(look.data),
                read.addr.eq(Cat(sender.place, sender.slot)),
                read.en.eq(sender.en),
                sender.word.eq(read.data),
                self.resent[port].eq(sender.resent),
            ]
        full = Cat(sender.unsent[slot_bits] for sender in senders)
        busy = Cat(sender.repeats & (sender.slot == slot) for sender in senders)
        m.d.comb += [
            begun.w_en.eq(self.begin),
            begun.w_data.eq(self.sequence),
            self.i.ready.eq(~full.any() & ~busy.any()),
            moved.eq(self.i.valid & self.i.ready),
            write.addr.eq(Cat(beat, slot)),
            write.data.eq(self.i.payload),
            write.en.eq(moved),
            end.addr.eq(slot),
            end.data.number.eq(begun.r_data),
            end.data.end.eq(beat),
        ]
        for port in range(options.ports):
            others = Cat(full[:port], full[port + 1 :])
            m.d.comb += self.untaken[port].eq(self.i.valid & full[port] & ~others.any())
        with m.If(moved):
            m.d.sync += beat.eq(beat + 1)
            with m.If(self.i.payload.last):
                m.d.comb += [begun.r_en.eq(1), end.en.eq(1)]
                m.d.sync += [beat.eq(0), written.eq(written + 1)]
                m.d.sync += kept.bit_select(slot, 1).eq(1)
        if platform == "formal":
            SentSums(sums, ended, kept).claim(
                m,
                platform,
                passing=self.i.valid,
                numbered=begun.r_rdy,
                moved=moved,
                number=begun.r_data,
                slot=slot,
                beat=beat,
                payload=self.i.payload,
                senders=senders,
            )
        return m
