"""The ring NIC: a circuit that adds this host's contribution to sums that travel round a ring."""

from amaranth.hdl import Module, Mux, ResetInserter, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from slackline.circuit.bus import BUS, Bank
from slackline.circuit.frame import Beat, FrameInlet, FrameOutlet
from slackline.circuit.options import RingOptions
from slackline.circuit.registers import nic_registers
from slackline.circuit.ring._datapath import STALLS, RingDatapath
from slackline.circuit.ring._dma import RingReads, RingWrites
from slackline.circuit.ring._flow_control import RingFlowReceiver, RingFlowSender
from slackline.circuit.ring._layouts import Descriptor, DmaRequest, Key
from slackline.circuit.ring._place import Place
from slackline.circuit.ring._receiver import EVENTS, RingReceiver
from slackline.circuit.ring._scheduler import RingScheduler
from slackline.circuit.ring._transmitter import RingTransmitter

__all__ = ["RingNic"]


class RingNic(wiring.Component):
    """A NIC that adds its host's data to the sums that travel round a ring of ranks.

    Each operation may start at a different rank.

    rx, rx_back     streams of Beat from the predecessor and to it: data in; ACKs and GRANTs out
    tx, tx_back     streams of Beat to the successor and from it: data out; ACKs and GRANTs in; no
                    reset by the registers cuts a frame of these four, see FrameOutlet
    descriptors     stream of Descriptor: operations to open; not ready while no more can be open
    read_requests   stream of DmaRequest
    read_data       stream of Beat: the requested data, in order, `last` at the end of each request;
                    always ready
    write_requests  stream of DmaRequest
    write_data      stream of Beat: the data to write, in order, `last` at the end of each request
    completions     stream of Key: operations whose whole sum has left by write_data
    failures        stream of Key: the operation whose data could not be read, at most one; the NIC
                    then adds no more of its host's data until control bit 0 is cleared
    bus             the registers of `nic_registers`: see docs/circuits/host-interface.md
    enabled         control bit 0
    ranks           the register `ranks`

    The NIC moves a beat a cycle. A frame is forwarded once the whole frame has come and this host's
    data for the frame have been read. Only back-pressure on `tx` and `write_data` can stall the
    NIC; a frame that has begun to leave never waits for data.

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
                "failures": Out(stream.Signature(Key())),
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
        core.submodules.scheduler = scheduler = RingScheduler(options)
        core.submodules.reads = reads = RingReads(options)
        core.submodules.datapath = datapath = RingDatapath(options)
        core.submodules.writes = writes = RingWrites(options)
        core.submodules.transmitter = transmitter = RingTransmitter(options)
        core.submodules.flow_sender = flow_sender = RingFlowSender(options)
        core.submodules.flow_receiver = flow_receiver = RingFlowReceiver(options)
        for part in (receiver, scheduler, transmitter, flow_sender, flow_receiver):
            m.d.comb += part.place.eq(place)

        for outer, inner in (
            (self.descriptors, scheduler.descriptors),
            (self.read_data, reads.i),
            (self.read_requests, scheduler.reads),
            (self.write_requests, writes.requests),
            (self.write_data, writes.beats),
            (self.completions, writes.completions),
        ):
            wiring.connect(core, wiring.flipped(outer), inner)
        for name, outer, inner in (
            ("rx", self.rx, receiver.i),
            ("tx_back", self.tx_back, flow_receiver.i),
        ):
            m.submodules[f"inlet_{name}"] = inlet = FrameInlet(options.lanes)
            m.d.comb += inlet.cut.eq(~enable)
            wiring.connect(m, wiring.flipped(outer), inlet.i)
            wiring.connect(m, inlet.o, inner)
        for name, outer, inner in (
            ("tx", self.tx, transmitter.o),
            ("rx_back", self.rx_back, flow_sender.o),
        ):
            m.submodules[f"outlet_{name}"] = outlet = FrameOutlet(options.lanes)
            m.d.comb += outlet.cut.eq(~enable)
            wiring.connect(m, inner, outlet.i)
            wiring.connect(m, outlet.o, wiring.flipped(outer))
        for source, sink in (
            (receiver.asks, scheduler.asks),
            (flow_receiver.granted, scheduler.granted),
            (flow_receiver.acks, transmitter.answer),
            (scheduler.grants, flow_sender.grants),
            (scheduler.inquiries, transmitter.inquiries),
            *((scheduler.jobs[side], datapath.jobs[side]) for side in range(2)),
        ):
            wiring.connect(core, source, sink)

        # The reads are in the order of the partial sums, so the first of these that waits for data
        # when the failed read comes is that read's.
        told, waiting = Signal(), scheduler.jobs[0]
        m.d.comb += [
            self.failures.payload.eq(waiting.payload.key),
            self.failures.valid.eq(reads.failed & waiting.valid & waiting.payload.local & ~told),
        ]
        with core.If(self.failures.valid & self.failures.ready):
            core.d.sync += told.eq(1)

        ticks = Signal(32)
        tick = ticks >= bank.settings["timeout"]
        core.d.sync += ticks.eq(Mux(tick, 0, ticks + 1))
        m.d.comb += [
            scheduler.there.eq(receiver.there),
            receiver.look.eq(scheduler.look),
            scheduler.head.eq(receiver.head),
            receiver.fetched.eq(scheduler.fetched),
            scheduler.room.eq(reads.room),
            reads.reserved.eq(scheduler.reserved),
            scheduler.tick.eq(tick),
            datapath.local_word.eq(reads.word),
            datapath.local_whole.eq(reads.whole),
            reads.taken.eq(datapath.local_taken),
            reads.begun.eq(datapath.local_begun),
            datapath.room.eq(transmitter.room),
            datapath.space.eq(transmitter.space[1]),
            datapath.waits.eq(scheduler.waits),
            scheduler.space.eq(transmitter.space[0]),
            transmitter.claimed.eq(scheduler.claimed),
            datapath.host_room.eq(writes.room),
            datapath.open.eq(scheduler.open.any()),
            receiver.side.eq(datapath.side),
            receiver.address.eq(datapath.address),
            datapath.word.eq(receiver.word),
            receiver.released.eq(datapath.released),
            transmitter.timeout.eq(bank.settings["timeout"]),
            flow_sender.changed.eq(receiver.changed),
        ]
        for part in (transmitter, writes):
            m.d.comb += [
                part.begun.eq(datapath.begun),
                part.job.eq(datapath.job),
                part.valid.eq(datapath.valid),
                part.i.eq(datapath.o),
            ]
        for side in range(2):
            m.d.comb += [
                flow_sender.base[side].eq(receiver.base[side]),
                flow_sender.arrived[side].eq(receiver.arrived[side]),
            ]
        counts = {
            **{name: receiver.events[name] for name in EVENTS},
            **{name: datapath.stalls[name] for name in STALLS},
            "unexpected": scheduler.unexpected,
            "answers_dropped": flow_receiver.dropped,
            "frames": transmitter.sent,
            "resent": transmitter.resent,
            "completed": writes.completed,
            "reads_failed": reads.fails,
            "busy": datapath.busy,
        }
        m.d.comb += [bank.counts[name].eq(pulse & enable) for name, pulse in counts.items()]
        return m

    def _place(self, m: Module, bank: Bank) -> Signal:
        """Return the registers' settings, and the neighbours' ranks computed from them."""
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
