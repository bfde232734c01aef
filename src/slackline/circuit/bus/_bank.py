"""The register bank of a circuit, as gateware."""

from collections.abc import Sequence

from amaranth.hdl import Const, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from slackline.circuit.registers import Register

__all__ = ["BUS", "Bank"]

BUS = wiring.Signature(
    {"address": Out(16), "write": Out(1), "write_data": Out(32), "read_data": In(32)}
)
"""The signature of the register bus, seen from the host. `address` counts words of 32 bits. `write`
stores `write_data` in a setting. `read_data` follows `address` by a cycle and is 0 where there is
no register."""


class Bank(wiring.Component):
    """A bank of registers behind a bus.

    settings[name]  the value of a setting
    stores[name]    high while `bus.write_data` is being written to a setting
    counts[name]    adds one to a counter in each cycle in which it is high
    states[name]    the value that a read of a state or a doorbell returns
    rung[name]      high while `bus.write_data` is being written to a doorbell
    """

    def __init__(self, registers: Sequence[Register]) -> None:
        self.registers = registers
        self.settings = {
            each.name: Signal(32, name=each.name, init=each.value)
            for each in registers
            if each.kind == "setting"
        }
        self.stores = {name: Signal(name=f"store_{name}") for name in self.settings}
        self.counts = {
            each.name: Signal(name=f"count_{each.name}")
            for each in registers
            if each.kind == "counter"
        }
        self.states = {
            each.name: Signal(32, name=f"state_{each.name}")
            for each in registers
            if each.kind in ("state", "doorbell")
        }
        self.rung = {
            each.name: Signal(name=f"rung_{each.name}")
            for each in registers
            if each.kind == "doorbell"
        }
        super().__init__({"bus": In(BUS)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        held: dict[int, Value] = {}
        for each in self.registers:
            value: Value = Const(each.value, 32)
            if each.kind == "setting":
                value = self.settings[each.name]
                stores = self.stores[each.name]
                here = self.bus.address == each.address // 4
                m.d.comb += stores.eq(self.bus.write & here)
                with m.If(stores):
                    m.d.sync += value.eq(self.bus.write_data)
            elif each.kind == "counter":
                value = Signal(32, name=f"counter_{each.name}")
                # A counter counts a cycle late, so that the counter's carry chain is not part of
                # the datapath's longest path.
                pulse = Signal(name=f"pulse_{each.name}")
                m.d.sync += [pulse.eq(self.counts[each.name]), value.eq(value + pulse)]
            elif each.name in self.states:
                value = self.states[each.name]
            if each.name in self.rung:
                here = self.bus.address == each.address // 4
                m.d.comb += self.rung[each.name].eq(self.bus.write & here)
            held[each.address // 4] = value
        with m.Switch(self.bus.address):
            for address, value in held.items():
                with m.Case(address):
                    m.d.sync += self.bus.read_data.eq(value)
            with m.Default():
                m.d.sync += self.bus.read_data.eq(0)
        return m
