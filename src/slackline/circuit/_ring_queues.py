"""The ring NIC as a host has it: operations in a queue in its memory, completions in another."""

from amaranth.hdl import Cat, Module, ResetInserter
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from slackline.circuit._bank import BUS, Bank
from slackline.circuit._frames import Beat
from slackline.circuit._ring import RingNic
from slackline.circuit._ring_device import RingOptions
from slackline.circuit._ring_layouts import DmaRequest
from slackline.circuit._ring_queues_completions import CompletionQueue
from slackline.circuit._ring_queues_descriptors import DescriptorQueue
from slackline.circuit._ring_queues_dma import SharedReads, SharedWrites
from slackline.circuit._ring_registers import queue_registers

__all__ = ["QueuedRingNic"]

_READS = 64
"""Reads that are under way at once."""


class QueuedRingNic(wiring.Component):
    """A RingNic whose descriptors and completions are in rings in the host's memory.

    rx, rx_back, tx, tx_back   of RingNic
    read_requests   stream of DmaRequest; read_data: stream of Beat, what was asked for, in
                    order, `last` at the end of each request; always ready
    write_requests  stream of DmaRequest; write_data: stream of Beat, likewise; what comes first
                    must be in memory first
    bus             the registers of `ring_registers`: see docs/circuits.md
    interrupt       high while there are completions that the host has not taken, if enabled

    Descriptors share the stream of reads, completions that of writes, behind the sums they tell
    of. Neither queue ever holds more than its entries; what is full waits.

    Twin: RingTwin; driven by QueueDriver.
    """

    def __init__(self, options: RingOptions) -> None:
        self.options = options
        beats = stream.Signature(Beat(options.lanes))
        requests = stream.Signature(DmaRequest())
        super().__init__(
            {
                "rx": In(beats),
                "tx_back": In(beats),
                "read_data": In(beats),
                "tx": Out(beats),
                "rx_back": Out(beats),
                "read_requests": Out(requests),
                "write_requests": Out(requests),
                "write_data": Out(beats),
                "bus": In(BUS),
                "interrupt": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        options = self.options
        m.submodules.nic = nic = RingNic(options)
        m.submodules.bank = bank = Bank(queue_registers())
        core = Module()
        m.submodules.queues = ResetInserter(~nic.enabled)(core)
        core.submodules.descriptors = descriptors = DescriptorQueue(options)
        core.submodules.completions = completions = CompletionQueue(options)
        core.submodules.reads = reads = SharedReads(options.lanes, _READS)
        core.submodules.writes = writes = SharedWrites(options.lanes, 4 * options.slots)

        for name in ("rx", "tx_back", "tx", "rx_back"):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(nic, name))
        for source, sink in (
            (nic.read_requests, reads.asked[0]),
            (descriptors.requests, reads.asked[1]),
            (reads.beats[0], nic.read_data),
            (reads.beats[1], descriptors.i),
            (nic.write_requests, writes.asked[0]),
            (completions.requests, writes.asked[1]),
            (nic.write_data, writes.beats[0]),
            (completions.o, writes.beats[1]),
            (descriptors.descriptors, nic.descriptors),
            (nic.completions, completions.done),
            (descriptors.refusals, completions.refusals),
        ):
            wiring.connect(m, source, sink)
        for outer, inner in (
            (self.read_requests, reads.requests),
            (self.read_data, reads.i),
            (self.write_requests, writes.requests),
            (self.write_data, writes.o),
        ):
            wiring.connect(m, wiring.flipped(outer), inner)
        self._registers(m, bank, nic, descriptors, completions)
        return m

    def _registers(
        self,
        m: Module,
        bank: Bank,
        nic: RingNic,
        descriptors: DescriptorQueue,
        completions: CompletionQueue,
    ) -> None:
        bus = self.bus
        for side in (nic.bus, bank.bus):
            m.d.comb += [
                side.address.eq(bus.address),
                side.write.eq(bus.write),
                side.write_data.eq(bus.write_data),
            ]
        # Where one of them has no register it answers 0.
        m.d.comb += bus.read_data.eq(nic.bus.read_data | bank.bus.read_data)
        settings, states = bank.settings, bank.states
        for queue, name, doorbell in (
            (descriptors, "descriptor", "tail"),
            (completions, "completion", "taken"),
        ):
            m.d.comb += [
                queue.base.eq(Cat(settings[f"{name}_base_low"], settings[f"{name}_base_high"])),
                queue.bits.eq(settings[f"{name}_bits"]),
                queue.rung.eq(bank.rung[f"{name}_{doorbell}"]),
                queue.value.eq(bus.write_data),
            ]
        refused = descriptors.refusals
        m.d.comb += [
            descriptors.ranks.eq(nic.ranks),
            states["descriptor_tail"].eq(descriptors.tail),
            states["descriptor_head"].eq(descriptors.head),
            states["completion_tail"].eq(completions.tail),
            states["completion_taken"].eq(completions.taken),
            completions.head.eq(descriptors.head),
            self.interrupt.eq(completions.any & settings["interrupt"][0]),
            bank.counts["doorbells_refused"].eq(descriptors.wrong | completions.wrong),
            bank.counts["descriptors_refused"].eq(refused.valid & refused.ready),
            bank.counts["no_completion_room"].eq(completions.full),
        ]
