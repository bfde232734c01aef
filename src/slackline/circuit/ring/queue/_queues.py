"""A ring NIC's queues in its host's memory, and the DMA streams that NIC and queues share."""

from amaranth.hdl import Cat, Module, ResetInserter
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from slackline.circuit.bus import BUS, Bank
from slackline.circuit.frame import Beat
from slackline.circuit.options import RingOptions
from slackline.circuit.registers import queue_registers
from slackline.circuit.ring._layouts import Descriptor, DmaRequest, Key
from slackline.circuit.ring.queue._completions import CompletionQueue
from slackline.circuit.ring.queue._descriptors import DescriptorQueue
from slackline.circuit.ring.queue._sharing import SharedReads, SharedWrites

__all__ = ["RingQueues"]

_READS = 64
"""The number of reads that may be outstanding at once."""


class RingQueues(wiring.Component):
    """The logic between a RingNic and its host: descriptors in, completions out, data both ways.

    read_requests, read_data, write_requests, write_data, bus and interrupt are those of
    QueuedRingNic.

    enabled      while low, everything but settings and counters is reset
    ranks        the number of ranks in the ring
    descriptors  stream of Descriptor: the valid descriptors
    completions  stream of Key
    failures     stream of Key
    nic_...      the NIC's DMA streams

    The queues add no cycle to the NIC's own reads and writes.
    """

    def __init__(self, options: RingOptions) -> None:
        self.options = options
        beats = stream.Signature(Beat(options.lanes))
        requests = stream.Signature(DmaRequest())
        super().__init__(
            {
                "read_data": In(beats),
                "read_requests": Out(requests),
                "write_requests": Out(requests),
                "write_data": Out(beats),
                "bus": In(BUS),
                "interrupt": Out(1),
                "enabled": In(1),
                "ranks": In(16),
                "descriptors": Out(stream.Signature(Descriptor())),
                "completions": In(stream.Signature(Key())),
                "failures": In(stream.Signature(Key())),
                "nic_read_requests": In(requests),
                "nic_read_data": Out(beats),
                "nic_write_requests": In(requests),
                "nic_write_data": In(beats),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        options = self.options
        m.submodules.bank = bank = Bank(queue_registers())
        core = Module()
        m.submodules.core = ResetInserter(~self.enabled)(core)
        core.submodules.descriptors = descriptors = DescriptorQueue(options)
        core.submodules.completions = completions = CompletionQueue(options)
        core.submodules.reads = reads = SharedReads(options.lanes, _READS)
        core.submodules.writes = writes = SharedWrites(options.lanes, 4 * options.slots)

        for source, sink in (
            (descriptors.requests, reads.asked[1]),
            (reads.beats[1], descriptors.i),
            (completions.requests, writes.asked[1]),
            (completions.o, writes.beats[1]),
            (descriptors.refusals, completions.refusals),
        ):
            wiring.connect(m, source, sink)
        for outer, inner in (
            (self.read_requests, reads.requests),
            (self.read_data, reads.i),
            (self.write_requests, writes.requests),
            (self.write_data, writes.o),
            (self.descriptors, descriptors.descriptors),
            (self.completions, completions.done),
            (self.failures, completions.failed),
            (self.nic_read_requests, reads.asked[0]),
            (self.nic_read_data, reads.beats[0]),
            (self.nic_write_requests, writes.asked[0]),
            (self.nic_write_data, writes.beats[0]),
        ):
            wiring.connect(m, wiring.flipped(outer), inner)
        wiring.connect(m, wiring.flipped(self.bus), bank.bus)
        self._registers(m, bank, descriptors, completions)
        return m

    def _registers(
        self, m: Module, bank: Bank, descriptors: DescriptorQueue, completions: CompletionQueue
    ) -> None:
        settings, states = bank.settings, bank.states
        for queue, name, doorbell in (
            (descriptors, "descriptor", "tail"),
            (completions, "completion", "taken"),
        ):
            base = Cat(settings[f"{name}_base_low"], settings[f"{name}_base_high"])
            m.d.comb += [
                queue.base.eq(base),
                queue.bits.eq(settings[f"{name}_bits"]),
                queue.rung.eq(bank.rung[f"{name}_{doorbell}"]),
                queue.value.eq(self.bus.write_data),
            ]
        refused = descriptors.refusals
        m.d.comb += [
            descriptors.ranks.eq(self.ranks),
            completions.head.eq(descriptors.head),
            states["descriptor_tail"].eq(descriptors.tail),
            states["descriptor_head"].eq(descriptors.head),
            states["completion_tail"].eq(completions.tail),
            states["completion_taken"].eq(completions.taken),
            self.interrupt.eq(completions.any & settings["interrupt"][0]),
            bank.counts["doorbells_refused"].eq(descriptors.wrong | completions.wrong),
            bank.counts["descriptors_refused"].eq(refused.valid & refused.ready),
            bank.counts["no_completion_room"].eq(completions.full),
        ]
