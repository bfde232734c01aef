"""The ring NIC: a circuit that adds this host's contribution to sums that travel round a ring."""

from amaranth.hdl import Module, Mux, ResetInserter, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from slackline.circuit._bank import BUS, Bank
from slackline.circuit._frames import Beat
from slackline.circuit._ring_answers import RingAnswerer, RingListener
from slackline.circuit._ring_clerk import RingClerk
from slackline.circuit._ring_device import RingOptions
from slackline.circuit._ring_host import RingReads, RingWrites
from slackline.circuit._ring_joiner import STALLS, RingJoiner
from slackline.circuit._ring_layouts import Descriptor, DmaRequest, Key
from slackline.circuit._ring_place import Place
from slackline.circuit._ring_receiver import EVENTS, RingReceiver
from slackline.circuit._ring_registers import nic_registers
from slackline.circuit._ring_transmitter import RingTransmitter

__all__ = ["RingNic"]


class RingNic(wiring.Component):
    """A NIC that adds its host's data to the sums that travel round a ring of ranks.

    Each operation may start at another rank.

    rx, rx_back     streams of Beat from the predecessor and to it: data in; ACKs and GRANTs out
    tx, tx_back     streams of Beat to the successor and from it: data out; ACKs and GRANTs in
    descriptors     stream of Descriptor: operations to open; not ready while no more can be open
    read_requests   stream of DmaRequest
    read_data       stream of Beat: the requested data, in order, `last` at the end of each request;
                    always ready
    write_requests  stream of DmaRequest
    write_data      stream of Beat, likewise
    completions     stream of Key: operations whose sum has left by write_data
    bus             the registers of `nic_registers`: see docs/circuits/host-interface.md
    enabled         control bit 0
    ranks           the register `ranks`

    The NIC moves a beat a cycle. A frame goes on when it is whole and its local data are here.
    Nothing but `tx` and `write_data` can hold the NIC back, and neither makes a begun frame wait
    for data.

    The twin (bit-exact Python model) is slackline.circuit.RingTwin.
    """

    def __init__(self, options: RingOptions) -> None:
        self.options = options
        beats = stream.Signature(Beat(options.lanes))
        requests = stream.Signature(DmaRequest())
        super().__init__(
            {
                "rx": In(beats),
                "tx_back": In(beats),
                "descriptors": In(stream.Signature(Descriptor())),
                "read_data": In(beats),
                "tx": Out(beats),
                "rx_back": Out(beats),
                "read_requests": Out(requests),
                "write_requests": Out(requests),
                "write_data": Out(beats),
                "completions": Out(stream.Signature(Key())),
                "bus": In(BUS),
                "enabled": Out(1),
                "ranks": Out(16),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        options = self.options
        m.submodules.bank = bank = Bank(nic_registers(options))
        wiring.connect(m, wiring.flipped(self.bus), bank.bus)
        enable = bank.settings["control"][0]
        m.d.comb += [self.enabled.eq(enable), self.ranks.eq(bank.settings["ranks"])]
        core = Module()
        m.submodules.core = ResetInserter(~enable)(core)
        place = self._place(m, bank)

        core.submodules.receiver = receiver = RingReceiver(options)
        core.submodules.clerk = clerk = RingClerk(options)
        core.submodules.reads = reads = RingReads(options)
        core.submodules.joiner = joiner = RingJoiner(options)
        core.submodules.writes = writes = RingWrites(options)
        core.submodules.transmitter = transmitter = RingTransmitter(options)
        core.submodules.answerer = answerer = RingAnswerer(options)
        core.submodules.listener = listener = RingListener(options)
        for part in (receiver, clerk, transmitter, answerer, listener):
            m.d.comb += part.place.eq(place)

        for outer, inner in (
            (self.rx, receiver.i),
            (self.tx_back, listener.i),
            (self.descriptors, clerk.descriptors),
            (self.read_data, reads.i),
            (self.tx, transmitter.o),
            (self.rx_back, answerer.o),
            (self.read_requests, clerk.reads),
            (self.write_requests, writes.requests),
            (self.write_data, writes.beats),
            (self.completions, writes.completions),
        ):
            wiring.connect(core, wiring.flipped(outer), inner)
        for source, sink in (
            (receiver.asks, clerk.asks),
            (listener.granted, clerk.granted),
            (listener.acks, transmitter.answer),
            (clerk.grants, answerer.grants),
            (clerk.inquiries, transmitter.inquiries),
            *((clerk.jobs[side], joiner.jobs[side]) for side in range(2)),
        ):
            wiring.connect(core, source, sink)

        ticks = Signal(32)
        tick = ticks >= bank.settings["timeout"]
        core.d.sync += ticks.eq(Mux(tick, 0, ticks + 1))
        m.d.comb += [
            clerk.there.eq(receiver.there),
            receiver.look.eq(clerk.look),
            clerk.head.eq(receiver.head),
            receiver.fetched.eq(clerk.fetched),
            clerk.room.eq(reads.room),
            reads.reserved.eq(clerk.reserved),
            clerk.tick.eq(tick),
            joiner.local_word.eq(reads.word),
            joiner.local_whole.eq(reads.whole),
            reads.taken.eq(joiner.local_taken),
            reads.begun.eq(joiner.local_begun),
            joiner.room.eq(transmitter.room),
            joiner.space.eq(transmitter.space[1]),
            joiner.waits.eq(clerk.waits),
            clerk.space.eq(transmitter.space[0]),
            transmitter.claimed.eq(clerk.claimed),
            joiner.host_room.eq(writes.room),
            joiner.open.eq(clerk.open.any()),
            receiver.side.eq(joiner.side),
            receiver.address.eq(joiner.address),
            joiner.word.eq(receiver.word),
            receiver.released.eq(joiner.released),
            transmitter.timeout.eq(bank.settings["timeout"]),
            answerer.changed.eq(receiver.changed),
        ]
        for part in (transmitter, writes):
            m.d.comb += [
                part.begun.eq(joiner.begun),
                part.job.eq(joiner.job),
                part.valid.eq(joiner.valid),
                part.i.eq(joiner.o),
            ]
        for side in range(2):
            m.d.comb += [
                answerer.base[side].eq(receiver.base[side]),
                answerer.arrived[side].eq(receiver.arrived[side]),
            ]
        counts = {
            **{name: receiver.events[name] for name in EVENTS},
            **{name: joiner.stalls[name] for name in STALLS},
            "unexpected": clerk.unexpected,
            "answers_dropped": listener.dropped,
            "frames": transmitter.sent,
            "resent": transmitter.resent,
            "completed": writes.completed,
            "busy": joiner.busy,
        }
        m.d.comb += [bank.counts[name].eq(pulse & enable) for name, pulse in counts.items()]
        return m

    def _place(self, m: Module, bank: Bank) -> Signal:
        """Return the registers' settings, and both neighbours' ranks that follow from them."""
        place = Signal(Place())
        rank, ranks = (bank.settings[name][:16] for name in ("rank", "ranks"))
        last = rank + 1 == ranks
        m.d.sync += [getattr(place, name).eq(bank.settings[name]) for name in ("job", "epoch")]
        m.d.sync += [
            place.rank.eq(rank),
            place.plan.eq(bank.settings["plan"]),
            place.ranks.eq(ranks),
            place.predecessor.eq(Mux(rank == 0, ranks, rank) - 1),
            place.successor.eq(Mux(last, 0, rank + 1)),
        ]
        return place
