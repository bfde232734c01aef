"""An aggregation node in software: the process that `slackline aggregate` runs.

_options   the options of a node
_server    Aggregator: listens at one address; rank 0 of each group sends a request to it
_service   Service: the engine of one group, with listener, links and reduction

The ranks of a served group are called workers; their side is in `slackline.nic.offload`.
"""

from slackline.nic.aggregator._options import AggregatorOptions
from slackline.nic.aggregator._server import Aggregator

__all__ = ["Aggregator", "AggregatorOptions"]
