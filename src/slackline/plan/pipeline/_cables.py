"""Links between ranks, and the stages whose messages cross them.

    interleaved, 4 ranks     rank 0 -- rank 1 -- rank 2 -- rank 3 -- (rank 0)
    link                            0         1         2         3
    activations of 8 stages   0 -> 1    1 -> 2    2 -> 3    3 -> 4      stages 0 to 3, then
                              4 -> 5    5 -> 6    6 -> 7                stages 4 to 7

Link i joins rank i and rank i + 1. A schedule that goes round the ranks has one further link, from
the last rank to rank 0. In the shape of a V messages go down the links and up again.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from slackline.errors import UsageError
from slackline.plan.pipeline._scenario import Scenario

__all__ = ["delayed_links", "link_count"]


def link_count(placement: Sequence[int]) -> int:
    """Return the number of links between the ranks of the stages."""
    ranks = max(placement) + 1
    wraps = any({above, below} == {0, ranks - 1} for above, below in itertools.pairwise(placement))
    return ranks if wraps and ranks > 2 else ranks - 1


def delayed_links(
    scenario: Scenario, placement: Sequence[int], delays_ps: Mapping[int, tuple[int, int]]
) -> Scenario:
    """Return a copy in which the messages over some links have further delays.

    `delays_ps` has for each link the delay from rank i to rank i + 1, and that of the way back.
    Raises UsageError for a link that the ranks do not have.
    """
    ranks, links = max(placement) + 1, link_count(placement)
    for link in delays_ps:
        if not 0 <= link < links:
            have = "1 link" if links == 1 else f"{links} links"
            raise UsageError(f"there is no link {link}: {ranks} ranks have {have}")
    forward, backward = list(scenario.forward_delay_ps), list(scenario.backward_delay_ps)
    for boundary, (above, below) in enumerate(itertools.pairwise(placement)):
        for link, (down_ps, up_ps) in delays_ps.items():
            ends = (link, (link + 1) % ranks)
            if (above, below) == ends:
                forward[boundary] += down_ps
                backward[boundary] += up_ps
            elif (below, above) == ends:
                forward[boundary] += up_ps
                backward[boundary] += down_ps
    return replace(scenario, forward_delay_ps=tuple(forward), backward_delay_ps=tuple(backward))
