"""Circuits that reduce tensors, and their twins: bit-exact models of them in Python.

    _options, _formats      parameters and number formats that circuits and twins share
    _adder, _halves         one lane: fp32 and int32; bf16 and fp16 into fp32 and back
    _lanes                  parallel lanes behind a stream
    _frames, _crc           beats, and the header of slackline.wire
    _node                   the aggregation node, put together from
      _receiver               a port: frames checked and kept
      _matcher, _issuer       the comparison of frames, and the scheduler of beats
      _reducer                the chain of adders
      _retainer               the replay buffer of sums
      _bank, _registers       its registers, from one description
    _ring                   the ring NIC, put together from
      _ring_place, _ring_layouts  records that its parts exchange
      _ring_receiver          the way in: frames kept in slots by number
      _ring_clerk, _ring_dispatcher  the scheduler: operations, grants, the use of each frame
      _ring_joiner            the datapath
      _ring_transmitter, _ring_window   the way out: frames kept until they are acknowledged
      _ring_answers           flow control: ACKs and GRANTs, both ways
      _ring_host              reads and writes of the host's memory
      _ring_registers         its registers
    _ring_queued            the whole ring NIC, with queues in its host's memory
      _ring_queues            the queues, put together from
        _ring_queues_entries    the layout of their entries
        _ring_queues_descriptors, _ring_queues_completions   the two queues
        _ring_queues_dma        one DMA stream shared by two users
      _ring_queues_driver     the host's side
    _frame_reader, _rounder the first and the last stage of several of these
    _ring_device            the host's interface to a ring NIC, twin or circuit
      _ring_frames            the frames that it accepts, and their order
      _ring_circuit           the simulated one
      _ring_checked           one whose operations are sampled and repeated by another
    _axi                    any of these circuits behind AXI, for vendors' tools, with
      _axi_stream, _axi_lite  its buses
    _ethernet               frames as packets of a MAC
    _claims                 invariants beside the gateware, for proofs
    twins, _node_twin, _ring_twin   the models of lanes, node and ring NIC
    _kept                   the cache of generated Verilog
    _convert, _verilog      a circuit as Verilog
    _build, _simulation     Verilog behind a C interface that takes whole frames: harness.cc
    _synthesis              the resources of a circuit on an FPGA, with
      _alike                  identical parts, synthesised once
      _levels                 logic depth between registers
    _export                 the files of `slackline circuit verilog`

The package needs the extra slackline[circuit]; simulations also need Verilator and a C++ compiler.
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
    """Import a public name's module at first use, so that the package loads without its extra."""
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
