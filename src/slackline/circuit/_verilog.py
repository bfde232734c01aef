"""A circuit as Verilog, with what a host program must know of its ports."""

import hashlib
from dataclasses import dataclass

from amaranth.back import verilog
from amaranth.hdl import Value, ValueCastable
from amaranth.lib import wiring
from amaranth.lib.wiring import Flow

__all__ = ["Port", "Verilog", "convert"]


@dataclass(frozen=True, kw_only=True)
class Port:
    """A wire of the top module, less clock and reset."""

    name: str
    width: int
    input: bool


@dataclass(frozen=True, kw_only=True)
class Verilog:
    """The text of a circuit whose top module is `name`."""

    name: str
    text: str
    ports: tuple[Port, ...]

    @property
    def key(self) -> str:
        """A hash of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def convert(name: str, component: wiring.Component) -> Verilog:
    """The component as a top module with `clk` and a synchronous `rst`; takes seconds.

    Ports are named after the members: `i__payload`, `rx__0__valid`. Nothing of this machine is in
    the text, so it is the same wherever it is made.
    """
    ports = []
    for path, member, value in component.signature.flatten(component):
        if isinstance(value, ValueCastable):
            value = value.as_value()
        if isinstance(value, Value):
            port = "__".join(map(str, path))
            ports.append(Port(name=port, width=len(value), input=member.flow == Flow.In))
    text = verilog.convert(component, name=name, emit_src=False, strip_internal_attrs=True)
    return Verilog(name=name, text=text, ports=tuple(ports))
