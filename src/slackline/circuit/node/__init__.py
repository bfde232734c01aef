"""The aggregation node: a circuit that adds the data of the ranks in a star around it.

_aggregation    the node, put together from
  _receiver       a port: frames checked and kept
  _matcher        the comparison of frames
  _issuer         the scheduler of beats
  _reducer        the chain of adders
  _replay_buffer  the sums that are kept and repeated
"""

from slackline.circuit.node._aggregation import AggregationNode

__all__ = [
    "AggregationNode",
]
