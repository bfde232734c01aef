"""The whole ring NIC: a queue of operations and a queue of completions in its host's memory."""

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from slackline.circuit.bus import BUS
from slackline.circuit.frame import Beat
from slackline.circuit.options import RingOptions
from slackline.circuit.ring._layouts import DmaRequest
from slackline.circuit.ring._nic import RingNic
from slackline.circuit.ring.queue import RingQueues

__all__ = ["QueuedRingNic"]


class QueuedRingNic(wiring.Component):
    """A RingNic whose descriptors and completions are in ring buffers in the host's memory.

    rx, rx_back     those of RingNic, as are tx and tx_back
    read_requests   stream of DmaRequest
    read_data       stream of Beat: the requested data, in order, `last` at the end of each request;
                    always ready
    write_requests  stream of DmaRequest
    write_data      stream of Beat: the data to write, in order, `last` at the end of each request;
                    the host's memory must take the writes in order
    bus             the registers of `ring_registers`: see docs/circuits/host-interface.md
    interrupt       high, if enabled, while there are completions that the host has not taken

    Descriptors and the NIC's data are read by the same stream. A completion is written by the same
    stream as the sum that it reports, after the sum. Neither queue can overflow: a full queue makes
    its producer wait.

    The twin (bit-exact Python model) is RingTwin. QueueDriver drives the circuit.
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
        m.submodules.nic = nic = RingNic(self.options)
        m.submodules.queues = queues = RingQueues(self.options)
        for name in ("rx", "tx_back", "tx", "rx_back"):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(nic, name))
        for name in ("read_data", "read_requests", "write_requests", "write_data"):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(queues, name))
            wiring.connect(m, getattr(nic, name), getattr(queues, f"nic_{name}"))
        for name in ("descriptors", "completions", "failures"):
            wiring.connect(m, getattr(nic, name), getattr(queues, name))
        bus = self.bus
        for side in (nic.bus, queues.bus):
            m.d.comb += [
                side.address.eq(bus.address),
                side.write.eq(bus.write),
                side.write_data.eq(bus.write_data),
            ]
        m.d.comb += [
            # Each register bank answers 0 where it has no register, so OR joins the two answers.
            bus.read_data.eq(nic.bus.read_data | queues.bus.read_data),
            queues.enabled.eq(nic.enabled),
            queues.ranks.eq(nic.ranks),
            self.interrupt.eq(queues.interrupt),
        ]
        return m
