"""Circuits that reduce tensors, and their twins: bit-exact models of them in Python.

    options     parameters and number formats, which circuits, twins and hosts share
    registers   each circuit's registers and queue entries as tables
    proof       invariants beside the gateware, for formal proofs
    frame       beats, the header of slackline.wire, its checksum and its parser
    datapath    one lane, parallel lanes, bf16 and fp16 into fp32 and back
    bus         the register bank; AXI and Ethernet around any circuit
    node        the aggregation node
    ring        the ring NIC, and in ring.queue its queues in the host's memory
    twins       the models of lanes and node
    simulate    circuits as Verilog, cached, compiled and run
    measure     the resources of a circuit on an FPGA
    device      the host's interface to a ring NIC, twin or simulated circuit
    _export     the files of `slackline circuit verilog`

A package imports only the public names of packages above it in this list. Circuits need the extra
`circuit`; simulations also need Verilator and a C++ compiler.
"""

import importlib
from typing import TYPE_CHECKING

from slackline._distribution import install
from slackline.errors import UsageError

if TYPE_CHECKING:
    from slackline.circuit._export import export
    from slackline.circuit.bus import ETHERTYPE, AxiBlock, EthernetPort, frame_of, packet_of
    from slackline.circuit.datapath import Adder, Lanes, Narrow, Widen
    from slackline.circuit.device import (
        RING_STREAMS,
        CheckedRing,
        Checks,
        Completed,
        QueueDriver,
        RingCircuit,
        RingDevice,
        RingOperation,
        RingPlace,
        RingTwin,
        open_ring_device,
        rotated,
    )
    from slackline.circuit.measure import (
        FAMILIES,
        Resources,
        clock_mhz,
        logic_levels,
        resources,
        resources_added_up,
        yosys_version,
    )
    from slackline.circuit.node import AggregationNode, EthernetNode
    from slackline.circuit.options import (
        CANONICAL_NAN,
        ELEMENTS,
        LANES,
        REGISTERS_ETHERTYPE,
        Element,
        NodeOptions,
        RegisterCode,
        RegisterRequest,
        RingOptions,
    )
    from slackline.circuit.registers import (
        COMPLETION,
        DESCRIPTOR,
        Code,
        Entry,
        Register,
        c_header,
        node_registers,
        register_table,
        ring_registers,
    )
    from slackline.circuit.ring import QueuedRingNic, RingNic
    from slackline.circuit.simulate import (
        Simulation,
        Trace,
        Verilog,
        built,
        cached_ethernet_node,
        cached_node,
        cached_ring,
        cached_verilog,
        convert,
        mac_of,
        mac_text,
        missing_tools,
        mtu_of,
        packet_socket,
        parse_mac,
        prepare,
    )
    from slackline.circuit.twins import NodeTwin, RegisterTwin, reduce_in_rank_order

__all__ = [
    "CANONICAL_NAN",
    "COMPLETION",
    "DESCRIPTOR",
    "ELEMENTS",
    "ETHERTYPE",
    "FAMILIES",
    "LANES",
    "REGISTERS_ETHERTYPE",
    "RING_STREAMS",
    "Adder",
    "AggregationNode",
    "AxiBlock",
    "CheckedRing",
    "Checks",
    "Code",
    "Completed",
    "Element",
    "Entry",
    "EthernetNode",
    "EthernetPort",
    "Lanes",
    "Narrow",
    "NodeOptions",
    "NodeTwin",
    "QueueDriver",
    "QueuedRingNic",
    "Register",
    "RegisterCode",
    "RegisterRequest",
    "RegisterTwin",
    "Resources",
    "RingCircuit",
    "RingDevice",
    "RingNic",
    "RingOperation",
    "RingOptions",
    "RingPlace",
    "RingTwin",
    "Simulation",
    "Trace",
    "Verilog",
    "Widen",
    "built",
    "c_header",
    "cached_ethernet_node",
    "cached_node",
    "cached_ring",
    "cached_verilog",
    "clock_mhz",
    "convert",
    "export",
    "frame_of",
    "logic_levels",
    "mac_of",
    "mac_text",
    "missing_tools",
    "mtu_of",
    "node_registers",
    "open_ring_device",
    "packet_of",
    "packet_socket",
    "parse_mac",
    "prepare",
    "reduce_in_rank_order",
    "register_table",
    "resources",
    "resources_added_up",
    "ring_registers",
    "rotated",
    "yosys_version",
]

_PACKAGES = {
    "options": (
        "CANONICAL_NAN",
        "ELEMENTS",
        "Element",
        "LANES",
        "NodeOptions",
        "REGISTERS_ETHERTYPE",
        "RegisterCode",
        "RegisterRequest",
        "RingOptions",
    ),
    "registers": (
        "COMPLETION",
        "Code",
        "DESCRIPTOR",
        "Entry",
        "Register",
        "c_header",
        "node_registers",
        "register_table",
        "ring_registers",
    ),
    "datapath": (
        "Adder",
        "Lanes",
        "Narrow",
        "Widen",
    ),
    "bus": (
        "AxiBlock",
        "ETHERTYPE",
        "EthernetPort",
        "frame_of",
        "packet_of",
    ),
    "node": ("AggregationNode", "EthernetNode"),
    "ring": (
        "QueuedRingNic",
        "RingNic",
    ),
    "twins": ("NodeTwin", "RegisterTwin", "reduce_in_rank_order"),
    "simulate": (
        "Simulation",
        "Trace",
        "Verilog",
        "built",
        "convert",
        "cached_verilog",
        "cached_ethernet_node",
        "cached_node",
        "cached_ring",
        "mac_of",
        "mac_text",
        "missing_tools",
        "mtu_of",
        "packet_socket",
        "parse_mac",
        "prepare",
    ),
    "measure": (
        "FAMILIES",
        "Resources",
        "clock_mhz",
        "logic_levels",
        "resources",
        "resources_added_up",
        "yosys_version",
    ),
    "device": (
        "CheckedRing",
        "Checks",
        "Completed",
        "QueueDriver",
        "RING_STREAMS",
        "RingCircuit",
        "RingDevice",
        "RingOperation",
        "RingPlace",
        "RingTwin",
        "open_ring_device",
        "rotated",
    ),
    "_export": ("export",),
}
_EXTRA = ("amaranth", "numpy")


def __getattr__(name: str) -> object:
    """Import the module of a public name at its first use; the package loads without Amaranth."""
    for package, names in _PACKAGES.items():
        if name in names:
            try:
                module = importlib.import_module(f"slackline.circuit.{package}")
            except ModuleNotFoundError as error:
                missing = (error.name or "").split(".")[0]
                if missing not in _EXTRA:
                    raise
                raise UsageError(f"circuits need {missing}: {install('circuit')}") from error
            return getattr(module, name)
    raise AttributeError(f"module 'slackline.circuit' has no attribute {name!r}")
