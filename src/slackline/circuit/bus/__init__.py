"""Buses around a circuit: its registers, AXI for vendors' tools, and Ethernet.

_bank           the register bank
_axi_lite       a bridge from AXI4-Lite to the register bank
_axi_stream     bridges between AXI4-Stream and streams of Beat
_block          any circuit behind AXI
_ethernet       frames as packets of a MAC
_register_port  registers as packets of a MAC
_packets        packets as streams, for simulations
"""

from slackline.circuit.bus._axi_lite import ADDRESS_BITS
from slackline.circuit.bus._axi_stream import FromAxi, ToAxi, axi_frames
from slackline.circuit.bus._bank import BUS, Bank
from slackline.circuit.bus._block import AxiBlock
from slackline.circuit.bus._ethernet import ETHERTYPE, EthernetPort, frame_of, packet_of
from slackline.circuit.bus._packets import PacketStreams
from slackline.circuit.bus._register_port import PacketMerge, RegisterPort

__all__ = [
    "ADDRESS_BITS",
    "BUS",
    "ETHERTYPE",
    "AxiBlock",
    "Bank",
    "EthernetPort",
    "FromAxi",
    "PacketMerge",
    "PacketStreams",
    "RegisterPort",
    "ToAxi",
    "axi_frames",
    "frame_of",
    "packet_of",
]
