"""Circuits as Verilog, compiled by Verilator and run from Python.

    _verilog        the Verilog of a circuit, with its ports
    _convert        gateware to Verilog
    _cache          the cache of generated Verilog
    _build          Verilog to a shared library, with harness.cc, model.h, dma.h and packets.h
    _commands       commands that run side by side and end with this process
    _trace          files with the values of all wires
    _simulation     a compiled circuit, driven from Python, or by packets of real interfaces
    _sockets        packet sockets of real interfaces

Amaranth is loaded only when Verilog is generated.
"""

from slackline.circuit.simulate._build import built, missing_tools
from slackline.circuit.simulate._cache import (
    cached_ethernet_node,
    cached_node,
    cached_ring,
    cached_verilog,
)
from slackline.circuit.simulate._convert import convert
from slackline.circuit.simulate._simulation import PacketCounts, Simulation, prepare
from slackline.circuit.simulate._sockets import (
    mac_of,
    mac_text,
    mtu_of,
    packet_socket,
    parse_mac,
)
from slackline.circuit.simulate._trace import Trace
from slackline.circuit.simulate._verilog import Verilog

__all__ = [
    "PacketCounts",
    "Simulation",
    "Trace",
    "Verilog",
    "built",
    "cached_ethernet_node",
    "cached_node",
    "cached_ring",
    "cached_verilog",
    "convert",
    "mac_of",
    "mac_text",
    "missing_tools",
    "mtu_of",
    "packet_socket",
    "parse_mac",
    "prepare",
]
