"""Facts about this host that the engine uses: addresses, ports, NUMA nodes, limits of memory, and
texts of addresses.
"""

from slackline.nic._host_port import parse_address, show_address
from slackline.nic._numa import node_of_nic, nodes
from slackline.nic.connect import (
    Interface,
    devices,
    equal_arenas,
    local_interfaces,
    port_range,
    port_range_text,
)

__all__ = [
    "Interface",
    "devices",
    "equal_arenas",
    "local_interfaces",
    "node_of_nic",
    "nodes",
    "parse_address",
    "port_range",
    "port_range_text",
    "show_address",
]
