"""A node within Icarus, a master and MACs of cocotbext-axi around it, and the buses' rules."""

import random
from collections.abc import Iterator
from typing import Any

import cocotb
from circuit_driving import Sender
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, RisingEdge, with_timeout
from cocotbext.axi import (
    AxiLiteBus,
    AxiLiteMaster,
    AxiResp,
    AxiStreamBus,
    AxiStreamFrame,
    AxiStreamSink,
    AxiStreamSource,
)

from slackline.circuit import NodeOptions, NodeTwin, node_registers

OPTIONS = NodeOptions(ports=2, lanes=1, slots=4, payload_bytes=64)
REGISTERS = {each.name: each for each in node_registers(OPTIONS)}
WAIT = (20, "us")


class Bench:
    """A node after its reset, with what surrounds it; everything pauses at random."""

    def __init__(self, dut: Any, seed: int, pauses: float) -> None:
        self.dut = dut
        reset = {"reset": dut.aresetn, "reset_active_level": False}
        self.master = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axil"), dut.aclk, **reset)
        self.macs = [
            AxiStreamSource(AxiStreamBus.from_prefix(dut, f"s_axis_rx{k}"), dut.aclk, **reset)
            for k in range(OPTIONS.ports)
        ]
        self.readers = [
            AxiStreamSink(AxiStreamBus.from_prefix(dut, f"m_axis_tx{k}"), dut.aclk, **reset)
            for k in range(OPTIONS.ports)
        ]
        write, read = self.master.write_if, self.master.read_if
        channels = [write.aw_channel, write.w_channel, write.b_channel]
        channels += [read.ar_channel, read.r_channel]
        for k, each in enumerate([*channels, *self.macs, *self.readers]):
            each.set_pause_generator(pausing(random.Random(100 * seed + k), pauses))
        self.senders = [Sender(rank) for rank in range(OPTIONS.ports)]
        self.twin = NodeTwin(options=OPTIONS, job=7, epoch=3, source=9)
        self.wanted: list[bytes] = []

    async def reset(self) -> None:
        self.dut.aresetn.value = 0
        for _ in range(4):
            await RisingEdge(self.dut.aclk)
        self.dut.aresetn.value = 1
        await RisingEdge(self.dut.aclk)

    async def read(self, name: str) -> int:
        found = await with_timeout(self.master.read(REGISTERS[name].address, 4), *WAIT)
        assert found.resp == AxiResp.OKAY
        return int.from_bytes(found.data, "little")

    async def write(self, name: str, value: int) -> None:
        data = value.to_bytes(4, "little")
        done = await with_timeout(self.master.write(REGISTERS[name].address, data), *WAIT)
        assert done.resp == AxiResp.OKAY

    async def open(self) -> None:
        for name, value in {"job": 7, "epoch": 3, "source": 9, "control": 1}.items():
            await self.write(name, value)

    def send(self, port: int, frame: bytes, *, bad: bool = False) -> None:
        """To the circuit and its twin."""
        users = [0] * (len(frame) - 1) + [int(bad)]
        self.macs[port].send_nowait(AxiStreamFrame(frame, tuser=users))
        self.wanted += self.twin.receive(port, frame, bad=bad)

    async def agree(self) -> None:
        """What leaves every port is the twin's, frame by frame, and so are the counters."""
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


def pausing(draw: random.Random, share: float) -> Iterator[bool]:
    while True:
        yield draw.random() < share


async def obeys(dut: Any, valid: str, ready: str, wires: tuple[str, ...]) -> None:
    """Nothing is valid in reset; what is valid and was not taken stays and does not change."""
    payload = [getattr(dut, wire) for wire in wires]
    held: list[Any] | None = None
    resets = 0
    while True:
        # Between two rising edges all is settled.
        await FallingEdge(dut.aclk)
        if dut.aresetn.value == 0:
            held = None
            resets += 1
            assert resets < 2 or getattr(dut, valid).value == 0, f"{valid} is high in reset"
            continue
        resets = 0
        now = [wire.value for wire in payload]
        if held is not None:
            assert getattr(dut, valid).value == 1, f"{valid} was withdrawn"
            assert now == held, f"the payload of {valid} changed"
        waits = getattr(dut, valid).value == 1 and getattr(dut, ready).value == 0
        held = now if waits else None


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
"""What the node drives: the stem of its valid and ready, and its payload."""


async def begin(dut: Any, seed: int, pauses: float) -> Bench:
    """A node that was reset, everything around it pausing in that share of cycles."""
    cocotb.start_soon(Clock(dut.aclk, 2, "ns").start())
    bench = Bench(dut, seed, pauses)
    for stem, wires in RULES.items():
        cocotb.start_soon(obeys(dut, f"{stem}valid", f"{stem}ready", wires))
    await bench.reset()
    return bench
