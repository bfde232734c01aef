"""The resources of a circuit on an FPGA, and the clock rate that the circuit reaches.

_synthesis      cells counted by Yosys, a clock by nextpnr
  _alike          identical parts, synthesised once
  _levels         logic depth between registers
"""

from slackline.circuit.measure._synthesis import (
    FAMILIES,
    Resources,
    clock_mhz,
    logic_levels,
    resources,
    resources_added_up,
    yosys_version,
)

__all__ = [
    "FAMILIES",
    "Resources",
    "clock_mhz",
    "logic_levels",
    "resources",
    "resources_added_up",
    "yosys_version",
]
