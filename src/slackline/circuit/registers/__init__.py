"""Registers and queue entries as tables, for gateware, drivers, C headers and pages alike.

_register   the description of a register; C header and table
_node       the registers of the aggregation node
_ring       the registers of the ring NIC and of its queues
_entries    the entries of the ring NIC's queues
"""

from slackline.circuit.registers._entries import (
    COMPLETION,
    DESCRIPTOR,
    Code,
    Entry,
    c_entries,
    entry_tables,
)
from slackline.circuit.registers._node import RESETTING, node_registers
from slackline.circuit.registers._register import Register, c_header, register_table
from slackline.circuit.registers._ring import (
    RING_COUNTERS,
    nic_registers,
    queue_registers,
    ring_registers,
)

__all__ = [
    "RESETTING",
    "COMPLETION",
    "DESCRIPTOR",
    "RING_COUNTERS",
    "Code",
    "Entry",
    "Register",
    "c_entries",
    "c_header",
    "entry_tables",
    "nic_registers",
    "node_registers",
    "queue_registers",
    "register_table",
    "ring_registers",
]
