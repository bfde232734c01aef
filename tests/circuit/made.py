"""Circuits as they are: made once and kept in the user's cache, whichever tests simulate them.

A circuit with a mutant in it is made anew, by `convert`.
"""

from slackline.circuit import NodeOptions, RingOptions, Verilog


def aggregation_node(options: NodeOptions) -> Verilog:
    from slackline.circuit import AggregationNode, convert, kept

    return kept("node", options, lambda: convert("node", AggregationNode(options)))


def ring_nic(options: RingOptions) -> Verilog:
    from slackline.circuit import QueuedRingNic, convert, kept

    return kept("ring", options, lambda: convert("ring", QueuedRingNic(options)))
