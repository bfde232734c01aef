"""Circuits as Verilog, compiled by Verilator and run from Python.

    _verilog        the Verilog of a circuit, with its ports
    _convert        gateware to Verilog
    _cache          the cache of generated Verilog
    _build          Verilog to a shared library, with harness.cc and dma.h
    _commands       commands that run side by side and end with this process
    _simulation     a compiled circuit, driven from Python

Amaranth is loaded only when Verilog is generated.
"""

from slackline.circuit.simulate._build import built, missing_tools
from slackline.circuit.simulate._cache import cached_node, cached_ring, cached_verilog
from slackline.circuit.simulate._convert import convert
from slackline.circuit.simulate._simulation import Simulation
from slackline.circuit.simulate._verilog import Verilog

__all__ = [
    "Simulation",
    "Verilog",
    "built",
    "cached_node",
    "cached_ring",
    "cached_verilog",
    "convert",
    "missing_tools",
]
