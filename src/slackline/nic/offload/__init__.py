"""Devices and nodes that add in place of the engine: ring NICs and aggregation nodes.

_device, _ring_host    the interface and the thread of a device; the scheduler of a ring NIC
_circuit_nic           adapters to `slackline.circuit`
_aggregation_protocol  the request of a group to an aggregator, and the response
_star, _aggregator     the worker's side of an aggregator, and the server
"""

from slackline.nic.offload._aggregator import Aggregator, AggregatorOptions
from slackline.nic.offload._circuit_nic import Devices
from slackline.nic.offload._device import DeviceThread
from slackline.nic.offload._star import Star, reach

__all__ = [
    "Aggregator",
    "AggregatorOptions",
    "DeviceThread",
    "Devices",
    "Star",
    "reach",
]
