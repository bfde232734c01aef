"""The links that a group is opened with, and the plans that need no further links.

A group of at most 4 ranks is opened with all its links. A larger group is opened with a ring of
links, and makes every other link when an operation needs it.
"""

from __future__ import annotations

from types import MappingProxyType

from slackline.plan.collective import Collective

__all__ = ["CHAIN", "EARLY", "connects_later", "first_peers"]

_ALL_LINKED = 4
"""The largest group that is opened with all its links."""
CHAIN = "reduce-broadcast"
"""The all_reduce in which partial sums go along a chain of ranks, and the result goes back."""
EARLY = MappingProxyType(
    {
        Collective.ALL_REDUCE: (CHAIN, "ring"),
        Collective.ALL_GATHER: ("ring",),
        Collective.BROADCAST: ("chain",),
        Collective.BARRIER: ("chain",),
    }
)
"""The plans in which a rank exchanges messages only with the next and the previous rank. Plans for
reduce and reduce_scatter are missing: a reduce by a chain also needs a link to the root, and a
reduce_scatter by a ring adds in another order."""


def connects_later(ranks: int) -> bool:
    """Return whether a group of `ranks` makes most links when an operation needs them."""
    return ranks > _ALL_LINKED


def first_peers(rank: int, ranks: int) -> frozenset[int]:
    """Return the ranks to which a new group of `ranks` connects `rank`.

    In a large group these are the next and the previous rank.
    """
    if not connects_later(ranks):
        return frozenset(range(ranks)) - {rank}
    return frozenset(((rank + 1) % ranks, (rank - 1) % ranks))
