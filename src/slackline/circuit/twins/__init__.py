"""Twins of circuits: NumPy models whose results are bit-identical to those of the circuits.

    _lanes          lanes and the conversions of 16-bit floats
    _node           the aggregation node
    _stage          the stage of a port, for changes
    _register_port  registers over Ethernet

The ring NIC's twin is a ring device: see slackline.circuit.device.
"""

from slackline.circuit.twins._lanes import Words, add, lanes, narrow, reduce_in_rank_order, widen
from slackline.circuit.twins._node import NodeTwin
from slackline.circuit.twins._register_port import RegisterTwin

__all__ = [
    "NodeTwin",
    "RegisterTwin",
    "Words",
    "add",
    "lanes",
    "narrow",
    "reduce_in_rank_order",
    "widen",
]
