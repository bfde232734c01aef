"""The aggregation node: a circuit in the middle of a star of ranks, which adds their data.

_ethernet_node  the node between MACs
_aggregation    the node, put together from
  _stage          the stage of a port, for changes
  _receiver       the receiver of a port, which checks and buffers frames
  _matcher        the comparison of frames
  _issuer         the scheduler of beats
  _reducer        the chain of adders
  _sum_buffer     the buffer of recent sums
  _sender         the sender of a port, which repeats sums on request
"""

from slackline.circuit.node._aggregation import AggregationNode
from slackline.circuit.node._ethernet_node import EthernetNode

__all__ = [
    "AggregationNode",
    "EthernetNode",
]
