"""The files of the circuits for synthesis tools and drivers."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from slackline._distribution import version
from slackline.circuit._testbench import node_testbench
from slackline.circuit.bus import AxiBlock, EthernetPort
from slackline.circuit.datapath import Lanes
from slackline.circuit.node import AggregationNode, EthernetNode
from slackline.circuit.options import NodeOptions, RingOptions
from slackline.circuit.registers import (
    COMPLETION,
    DESCRIPTOR,
    c_entries,
    c_header,
    entry_tables,
    node_registers,
    register_table,
    ring_registers,
)
from slackline.circuit.ring import QueuedRingNic
from slackline.circuit.simulate import convert

__all__ = ["export"]


_WAIVERS = {
    "DECLFILENAME": "a file holds all modules of its circuit",
    "UNUSEDSIGNAL": "a register or a header has bits that a part of the circuit does not need",
    "WIDTH": "Amaranth sizes each expression so that no bit is lost, and takes the bits it wants",
    "CASEINCOMPLETE": "a signal has its default before the case that may change it",
    "CMPCONST": "a comparison is written for all sizes of a circuit, and is constant in some",
    "VARHIDDEN": "a signal has the name of its module's parent's signal",
    "SYMRSVDWORD": "the port `interrupt` of the ring NIC, a word that C++ libraries use",
}
"""Verilator's lint rules that generated Verilog breaks, and why that is right."""

_HEADLESS = ("read_data", "write_data")
"""The ring NIC's data streams from and to a DMA core, which carry no frame headers."""
_ENTRIES = (DESCRIPTOR, COMPLETION)


def export(options: NodeOptions, ring: RingOptions, folder: Path) -> Sequence[Path]:
    """Write the circuits' Verilog and the register descriptions into `folder`; return the paths.

    The Verilog is that of the aggregation node, alone and between MACs, the ring NIC, the lanes
    and the Ethernet port, all behind AXI. The registers of the node and of the NIC are written as a
    C header and as a table. A testbench of the node checks itself by vectors. The folder is made if
    it is missing; files of the same names are replaced.
    """
    registers, ring_table = node_registers(options), ring_registers(ring)
    texts = {
        "slackline_node.v": convert("slackline_node", AxiBlock(AggregationNode(options))).text,
        "slackline_node.h": c_header(registers),
        "slackline_node.md": register_table(registers),
        "slackline_ring.v": convert(
            "slackline_ring", AxiBlock(QueuedRingNic(ring), _HEADLESS)
        ).text,
        "slackline_ring.h": c_header(ring_table, "ring") + "\n" + c_entries(_ENTRIES, "ring"),
        "slackline_ring.md": register_table(ring_table) + "\n" + entry_tables(_ENTRIES),
        "slackline_lanes.v": convert("slackline_lanes", AxiBlock(Lanes(options.lanes))).text,
        "slackline_ethernet.v": convert(
            "slackline_ethernet", AxiBlock(EthernetPort(options.lanes))
        ).text,
        "slackline_ethernet_node.v": convert(
            "slackline_ethernet_node", AxiBlock(EthernetNode(options))
        ).text,
    }
    made = dict.fromkeys(texts, options) | {
        name: ring for name in texts if name.startswith("slackline_ring")
    }
    texts = {
        name: _origin(made[name]) + text if name.endswith(".v") else text
        for name, text in texts.items()
    }
    texts["waivers.vlt"] = "".join(_waivers())
    texts |= node_testbench(options)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text)
    return [folder / name for name in texts]


def _origin(options: NodeOptions | RingOptions) -> str:
    """Return a comment of Verilog that tells what made the file."""
    return f"/* slackline {version()}, slackline circuit verilog: {options} */\n"


def _waivers() -> Iterator[str]:
    """Yield the lines of a configuration for `verilator --lint-only -Wall`."""
    yield "`verilator_config\n"
    yield "// Use: verilator --lint-only -Wall waivers.vlt FILE.v\n"
    yield "// The rules below are those that generated Verilog breaks, each with the reason.\n"
    for rule, why in _WAIVERS.items():
        yield f"// {why}\nlint_off -rule {rule}\n"
