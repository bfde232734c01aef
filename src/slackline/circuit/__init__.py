"""Circuits that add what passes through them, and their twins in Python, equal to the last bit.

    _options, _formats      what circuits and twins have in common
    _adder, _halves         one lane: fp32 and int32; bf16 and fp16 into fp32 and back
    _lanes                  lanes side by side behind a stream
    _frames, _crc           beats, and the header of slackline.wire
    _node                   the aggregation node, put together from
      _receiver               a port: frames checked and kept
      _matcher, _issuer       what to add, and when
      _reducer                the chain of adders
      _retainer               sums that are kept and given again
      _bank, _registers       its registers, from one description
    _ring                   the ring NIC, put together from
      _ring_place, _ring_layouts  what its parts tell each other
      _ring_receiver          the way in: frames kept in slots by number
      _ring_clerk             operations, grants, what each frame is for
      _ring_joiner            the datapath
      _ring_transmitter, _ring_window   the way out: frames kept until they are acknowledged
      _ring_answers           ACKs and GRANTs, both ways
      _ring_host              reads and writes of the host's memory
      _ring_registers         its registers
    _ring_queued            it with queues in its host's memory: the whole ring NIC
      _ring_queues            the queues, put together from
        _ring_queues_entries    what is in them
        _ring_queues_descriptors, _ring_queues_completions   the two
        _ring_queues_dma        two users of one DMA stream
      _ring_queues_driver     the host's side
    _frame_reader, _rounder what several of these begin and end with
    _ring_device            a ring NIC as its host sees it: twin or circuit
      _ring_frames            which frames it takes, in which order
      _ring_circuit           the simulated one
      _ring_checked           one with another behind it that does some operations again
    _axi                    any of them behind AXI, for vendors' tools, with
      _axi_stream, _axi_lite  its buses
    _ethernet               frames as packets of a MAC
    _claims                 invariants beside the gateware, for proofs
    twins, _node_twin, _ring_twin   what lanes, node and ring NIC compute
    _kept                   Verilog that was made before
    _convert, _verilog      a circuit as Verilog
    _build, _simulation     Verilog behind a C interface that takes whole frames: harness.cc
    _synthesis              what a circuit takes of an FPGA, with
      _alike                  parts that are alike
      _levels                 logic between registers
    _export                 the files of `slackline circuit verilog`

Needs the extra slackline[circuit]; simulations also Verilator and a C++ compiler.
"""

import importlib
from typing import TYPE_CHECKING

from slackline.errors import UsageError

if TYPE_CHECKING:
    from slackline.circuit._adder import Adder
    from slackline.circuit._axi import AxiBlock
    from slackline.circuit._build import built, missing_tools
    from slackline.circuit._convert import convert
    from slackline.circuit._ethernet import ETHERTYPE, EthernetPort, frame_of, packet_of
    from slackline.circuit._export import export
    from slackline.circuit._formats import CANONICAL_NAN, ELEMENTS, Element
    from slackline.circuit._halves import Narrow, Widen
    from slackline.circuit._kept import kept_already, kept_node, kept_ring
    from slackline.circuit._lanes import Lanes
    from slackline.circuit._node import AggregationNode
    from slackline.circuit._node_twin import NodeTwin
    from slackline.circuit._options import LANES, NodeOptions
    from slackline.circuit._registers import Register, c_header, node_registers, register_table
    from slackline.circuit._ring import RingNic
    from slackline.circuit._ring_checked import CheckedRing, Checks
    from slackline.circuit._ring_circuit import RingCircuit
    from slackline.circuit._ring_device import (
        RingDevice,
        RingOperation,
        RingOptions,
        RingPlace,
        open_ring_device,
        rotated,
    )
    from slackline.circuit._ring_frames import RING_STREAMS
    from slackline.circuit._ring_queued import QueuedRingNic
    from slackline.circuit._ring_queues_driver import Completed, QueueDriver
    from slackline.circuit._ring_queues_entries import COMPLETION, DESCRIPTOR, Code, Entry
    from slackline.circuit._ring_registers import ring_registers
    from slackline.circuit._ring_twin import RingTwin
    from slackline.circuit._simulation import Simulation
    from slackline.circuit._synthesis import (
        FAMILIES,
        Resources,
        clock_mhz,
        logic_levels,
        resources,
        resources_added_up,
        yosys_version,
    )
    from slackline.circuit._verilog import Verilog

__all__ = [
    "CANONICAL_NAN",
    "COMPLETION",
    "DESCRIPTOR",
    "ELEMENTS",
    "ETHERTYPE",
    "FAMILIES",
    "LANES",
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
    "EthernetPort",
    "Lanes",
    "Narrow",
    "NodeOptions",
    "NodeTwin",
    "QueueDriver",
    "QueuedRingNic",
    "Register",
    "Resources",
    "RingCircuit",
    "RingDevice",
    "RingNic",
    "RingOperation",
    "RingOptions",
    "RingPlace",
    "RingTwin",
    "Simulation",
    "Verilog",
    "Widen",
    "built",
    "c_header",
    "clock_mhz",
    "convert",
    "export",
    "frame_of",
    "kept_already",
    "kept_node",
    "kept_ring",
    "logic_levels",
    "missing_tools",
    "node_registers",
    "open_ring_device",
    "packet_of",
    "register_table",
    "resources",
    "resources_added_up",
    "ring_registers",
    "rotated",
    "yosys_version",
]

_HOMES = {
    "_adder": ("Adder",),
    "_axi": ("AxiBlock",),
    "_build": ("built", "missing_tools"),
    "_convert": ("convert",),
    "_ethernet": ("ETHERTYPE", "EthernetPort", "frame_of", "packet_of"),
    "_export": ("export",),
    "_formats": ("CANONICAL_NAN", "ELEMENTS", "Element"),
    "_halves": ("Narrow", "Widen"),
    "_kept": ("kept_already", "kept_node", "kept_ring"),
    "_lanes": ("Lanes",),
    "_node": ("AggregationNode",),
    "_node_twin": ("NodeTwin",),
    "_options": ("LANES", "NodeOptions"),
    "_registers": ("Register", "c_header", "node_registers", "register_table"),
    "_ring": ("RingNic",),
    "_ring_checked": ("CheckedRing", "Checks"),
    "_ring_circuit": ("RingCircuit",),
    "_ring_device": (
        "RingDevice",
        "RingOperation",
        "RingOptions",
        "RingPlace",
        "open_ring_device",
        "rotated",
    ),
    "_ring_frames": ("RING_STREAMS",),
    "_ring_queued": ("QueuedRingNic",),
    "_ring_queues_driver": ("Completed", "QueueDriver"),
    "_ring_queues_entries": ("COMPLETION", "DESCRIPTOR", "Code", "Entry"),
    "_ring_registers": ("ring_registers",),
    "_ring_twin": ("RingTwin",),
    "_simulation": ("Simulation",),
    "_synthesis": (
        "FAMILIES",
        "Resources",
        "clock_mhz",
        "logic_levels",
        "resources",
        "resources_added_up",
        "yosys_version",
    ),
    "_verilog": ("Verilog",),
}
_EXTRA = ("amaranth", "numpy")


def __getattr__(name: str) -> object:
    """Loads a name at first use, so that the room opens without its extra."""
    for home, names in _HOMES.items():
        if name in names:
            try:
                module = importlib.import_module(f"slackline.circuit.{home}")
            except ModuleNotFoundError as error:
                missing = (error.name or "").split(".")[0]
                if missing not in _EXTRA:
                    raise
                raise UsageError(f"circuits need {missing}: install slackline[circuit]") from error
            return getattr(module, name)
    raise AttributeError(f"module 'slackline.circuit' has no attribute {name!r}")
