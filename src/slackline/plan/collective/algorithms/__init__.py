"""The algorithms of collectives: generators of each member's instructions.

straight        direct and mesh plans: each contribution goes straight to the rank that adds it
ring, chain, torus, halving     plans in which ranks add and pass on partial sums
hierarchical    an all_reduce within hosts and between them
star            an aggregator between the ranks
dissemination   the barrier
"""

from typing import TYPE_CHECKING

from slackline._lazy import lazily

if TYPE_CHECKING:
    from slackline.plan.collective.algorithms import (
        chain,
        dissemination,
        halving,
        hierarchical,
        ring,
        star,
        straight,
        torus,
    )
else:
    __getattr__ = lazily(
        __name__,
        {
            "chain": "chain",
            "dissemination": "dissemination",
            "halving": "halving",
            "hierarchical": "hierarchical",
            "ring": "ring",
            "star": "star",
            "straight": "straight",
            "torus": "torus",
        },
    )

__all__ = [
    "chain",
    "dissemination",
    "halving",
    "hierarchical",
    "ring",
    "star",
    "straight",
    "torus",
]
