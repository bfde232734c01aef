"""A node within the Icarus simulator, with a bus master and MACs of cocotbext-axi around it."""

import random
from typing import Any

from bus_host import BusHost, pausing
from circuit_driving import Sender
from cocotb.triggers import RisingEdge, with_timeout
from cocotbext.axi import AxiStreamFrame, AxiStreamSink, AxiStreamSource

from slackline.circuit import NodeOptions, NodeTwin, node_registers

OPTIONS = NodeOptions(ports=2, lanes=1, slots=4, payload_bytes=64)
REGISTERS = {each.name: each for each in node_registers(OPTIONS)}
WAIT = (20, "us")


class Bench(BusHost):
    """A node after its reset, with a host and MACs around it that pause at random."""

    def __init__(self, dut: Any, seed: int, pauses: float) -> None:
        super().__init__(dut, REGISTERS, WAIT)
        ports = range(OPTIONS.ports)
        self.macs = [self.stream(AxiStreamSource, f"s_axis_rx{k}") for k in ports]
        self.readers = [self.stream(AxiStreamSink, f"m_axis_tx{k}") for k in ports]
        write, read = self.master.write_if, self.master.read_if
        channels = [write.aw_channel, write.w_channel, write.b_channel]
        channels += [read.ar_channel, read.r_channel]
        for k, each in enumerate([*channels, *self.macs, *self.readers]):
            each.set_pause_generator(pausing(random.Random(100 * seed + k), pauses))
        self.senders = [Sender(rank) for rank in range(OPTIONS.ports)]
        self.twin = NodeTwin(options=OPTIONS, job=7, epoch=3, source=9)
        self.wanted: list[bytes] = []

    async def open(self) -> None:
        for name, value in {"job": 7, "epoch": 3, "source": 9, "control": 1}.items():
            await self.write(name, value)

    def send(self, port: int, frame: bytes, *, bad: bool = False) -> None:
        """Send a frame of rank `port` to the circuit and to its twin (Python model)."""
        users = [0] * (len(frame) - 1) + [int(bad)]
        self.macs[port].send_nowait(AxiStreamFrame(frame, tuser=users))
        self.wanted += self.twin.receive(port, frame, bad=bad)

    async def agree(self) -> None:
        """Check that every port sends the twin's frames in order, and that counters agree."""
        for reader in self.readers:
            for wanted in self.wanted:
                found = await with_timeout(reader.recv(), *WAIT)
                assert bytes(found.tdata) == wanted
                assert found.tuser == 0
        self.wanted.clear()
        for mac in self.macs:
            await with_timeout(mac.wait(), *WAIT)
        for _ in range(50):
            await RisingEdge(self.dut.aclk)
        assert all(reader.empty() for reader in self.readers)
        for port, events in enumerate(self.twin.events):
            for name, count in events.items():
                assert await self.read(f"port{port}_{name}") == count, f"port {port}: {name}"


RULES = {
    **{
        f"m_axis_tx{k}_t": tuple(
            f"m_axis_tx{k}_{wire}" for wire in ("tdata", "tkeep", "tlast", "tuser")
        )
        for k in range(OPTIONS.ports)
    },
    "s_axil_b": ("s_axil_bresp",),
    "s_axil_r": ("s_axil_rdata", "s_axil_rresp"),
}
"""The streams that the node drives: the stem of valid and ready, and the payload's wires."""


async def begin(dut: Any, seed: int, pauses: float) -> Bench:
    """Return a bench whose node was reset, with random pauses in a share `pauses` of the cycles."""
    bench = Bench(dut, seed, pauses)
    await bench.begin(RULES)
    return bench
