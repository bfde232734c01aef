"""Parameters and number formats, which circuits, their twins and their hosts share.

_beats      widths of a beat, and checks of sizes
_formats    element types of the lanes
_node       the aggregation node
_ring       the ring NIC
_requests   registers over Ethernet
"""

from slackline.circuit.options._beats import LANES, BeatSizes, check_lanes
from slackline.circuit.options._formats import (
    CANONICAL_NAN,
    ELEMENT_BITS,
    ELEMENTS,
    WAY_BITS,
    Element,
    Way,
)
from slackline.circuit.options._node import NodeOptions
from slackline.circuit.options._requests import (
    REGISTERS_ETHERTYPE,
    REQUEST_BYTES,
    RegisterCode,
    RegisterRequest,
)
from slackline.circuit.options._ring import RingOptions, sum_bytes

__all__ = [
    "CANONICAL_NAN",
    "ELEMENTS",
    "ELEMENT_BITS",
    "LANES",
    "BeatSizes",
    "Element",
    "NodeOptions",
    "REGISTERS_ETHERTYPE",
    "REQUEST_BYTES",
    "RegisterCode",
    "RegisterRequest",
    "RingOptions",
    "WAY_BITS",
    "Way",
    "check_lanes",
    "sum_bytes",
]
