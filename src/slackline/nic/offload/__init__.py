"""Devices that add in place of the engine, and a rank's side of an aggregation node.

_device, _ring_host    the interface and the thread of a device; the scheduler of a ring NIC
_device_counts         the counters of a process's devices
_circuit_nic           adapters to `slackline.circuit`
_ethernet_node         a node elsewhere, over Ethernet
  _node_registers        its registers
_aggregation_protocol  the request of a group to an aggregator, and the response
_star                  the worker's side of an aggregator; the server is `slackline.nic.aggregator`
"""

from typing import TYPE_CHECKING

from slackline._lazy import lazily

if TYPE_CHECKING:
    from slackline.nic.offload._aggregation_protocol import (
        AggregationRequest,
        AggregationResponse,
        Proof,
        read_descriptor,
        rendezvous_with_aggregator,
    )
    from slackline.nic.offload._circuit_nic import Devices, Nodes
    from slackline.nic.offload._device import DeviceThread, NodeHost
    from slackline.nic.offload._device_counts import DeviceCounts
    from slackline.nic.offload._ethernet_node import EthernetNodes
    from slackline.nic.offload._star import Star, reach
else:
    __getattr__ = lazily(
        __name__,
        {
            "_aggregation_protocol": (
                "AggregationRequest AggregationResponse Proof read_descriptor "
                "rendezvous_with_aggregator"
            ),
            "_circuit_nic": "Devices Nodes",
            "_device": "DeviceThread NodeHost",
            "_device_counts": "DeviceCounts",
            "_ethernet_node": "EthernetNodes",
            "_star": "Star reach",
        },
    )

__all__ = [
    "AggregationRequest",
    "AggregationResponse",
    "DeviceCounts",
    "DeviceThread",
    "Devices",
    "EthernetNodes",
    "NodeHost",
    "Nodes",
    "Proof",
    "Star",
    "reach",
    "read_descriptor",
    "rendezvous_with_aggregator",
]
