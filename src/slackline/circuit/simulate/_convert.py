"""Conversion of Amaranth components to Verilog."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from slackline.circuit.simulate._verilog import Port, Verilog

if TYPE_CHECKING:
    from amaranth.lib import wiring

__all__ = ["convert"]


def convert(name: str, component: wiring.Component) -> Verilog:
    """Convert a component to a Verilog top module with `clk` and a synchronous `rst`.

    The conversion takes seconds. Ports are named after the component's members: `i__payload`,
    `rx__0__valid`. The text does not depend on the machine.
    """
    # A process that runs cached Verilog needs no Amaranth, whose import takes long.
    from amaranth.back import verilog
    from amaranth.hdl import Value, ValueCastable
    from amaranth.lib.wiring import Flow

    ports = []
    for path, member, value in component.signature.flatten(component):
        if isinstance(value, ValueCastable):
            value = value.as_value()
        if isinstance(value, Value):
            port = "__".join(map(str, path))
            ports.append(Port(name=port, width=len(value), input=member.flow == Flow.In))
    with _uncollected():
        text = verilog.convert(component, name=name, emit_src=False, strip_internal_attrs=True)
    return Verilog(name=name, text=text, ports=tuple(ports))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable Python's cyclic garbage collector within the context.

    Amaranth makes a million objects, and the collector took a third of a conversion's time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
