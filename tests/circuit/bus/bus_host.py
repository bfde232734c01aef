"""A simulated host of cocotbext-axi within Icarus, with checks of the rules of AXI streams."""

import random
from collections.abc import Iterator, Mapping
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, RisingEdge, with_timeout
from cocotbext.axi import AxiLiteBus, AxiLiteMaster, AxiResp, AxiStreamBus

from slackline.circuit import Register


class BusHost:
    """A host that resets the circuit, and reads and writes its registers."""

    def __init__(self, dut: Any, registers: Mapping[str, Register], wait: tuple[int, str]) -> None:
        """Connect to the circuit; an answer may take as long as `wait`, a number and a unit."""
        self.dut, self.registers, self.wait_for = dut, registers, wait
        self._reset = {"reset": dut.aresetn, "reset_active_level": False}
        bus = AxiLiteBus.from_prefix(dut, "s_axil")
        self.master = AxiLiteMaster(bus, dut.aclk, **self._reset)

    def stream(self, kind: Any, name: str) -> Any:
        """Return a source or sink, of class `kind`, on the AXI stream of that name."""
        return kind(AxiStreamBus.from_prefix(self.dut, name), self.dut.aclk, **self._reset)

    async def begin(self, rules: Mapping[str, tuple[str, ...]]) -> None:
        """Start the clock and the checks of the rules, and reset the circuit."""
        cocotb.start_soon(Clock(self.dut.aclk, 2, "ns").start())
        for stem, wires in rules.items():
            cocotb.start_soon(obeys(self.dut, f"{stem}valid", f"{stem}ready", wires))
        await self.reset()

    async def reset(self) -> None:
        self.dut.aresetn.value = 0
        for _ in range(4):
            await RisingEdge(self.dut.aclk)
        self.dut.aresetn.value = 1
        await RisingEdge(self.dut.aclk)

    async def read(self, name: str) -> int:
        found = await with_timeout(
            self.master.read(self.registers[name].address, 4), *self.wait_for
        )
        assert found.resp == AxiResp.OKAY
        return int.from_bytes(found.data, "little")

    async def write(self, name: str, value: int) -> None:
        data = value.to_bytes(4, "little")
        address = self.registers[name].address
        done = await with_timeout(self.master.write(address, data), *self.wait_for)
        assert done.resp == AxiResp.OKAY


def pausing(draw: random.Random, share: float) -> Iterator[bool]:
    while True:
        yield draw.random() < share


async def obeys(dut: Any, valid: str, ready: str, wires: tuple[str, ...]) -> None:
    """Check that a stream keeps the AXI rules for valid: low in reset, and steady until taken.

    The payload must not change either while it waits.
    """
    payload = [getattr(dut, wire) for wire in wires]
    held: list[Any] | None = None
    resets = 0
    while True:
        # All signals are settled between two rising edges.
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
