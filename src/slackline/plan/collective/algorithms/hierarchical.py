"""The hierarchical all_reduce: within each host, then between hosts, then within each host again.

Rank h * q + j is rank j of host h, of q ranks each. The rank reduces part j of the buffer with the
ranks of its host, round a ring in memory; then with rank j of all other hosts, round a ring over
the network; the result goes back the same way. So the plan is a torus whose rows are hosts:

    host 0    0 - 1 - 2 -     in memory
              |   |   |       over the network, q rings side by side
    host 1    3 - 4 - 5 -

Within a host the sums of a part are added round the ring of its ranks, then those of the hosts
round the ring of hosts: no rank order, but the same bits on every rank and from run to run.

2 (p - 1) / p S bytes leave each of p hosts, as few as for one rank a host, and each rank adds
(n - 1) / n S of them. Programs are made when they are asked for: with thousands of ranks nothing
but the programs in use is in memory.
"""

from collections.abc import Iterator

from slackline.errors import UsageError
from slackline.plan.collective._collective import Collective
from slackline.plan.collective._instruction import Instruction
from slackline.plan.collective._plan import CollectivePlan, LazyPrograms
from slackline.plan.collective.algorithms.torus import torus_program

__all__ = ["all_reduce_hierarchical", "hierarchical"]


def all_reduce_hierarchical(
    rank: int, ranks: int, root: int, ranks_per_host: int
) -> Iterator[Instruction]:
    """Yield a rank's instructions: reduce within the host and between hosts, spread back."""
    # Each host lists the chunks from its own on, so that all hosts are alike.
    row = rank // ranks_per_host
    return torus_program(rank, ranks // ranks_per_host, ranks_per_host, first_row=row)


def hierarchical(hosts: int, ranks_per_host: int) -> CollectivePlan:
    """Return the all_reduce over hosts with the same number of ranks each, ranks host by host.

    Raises UsageError where one of the numbers is not positive.
    """
    for name, value in (("hosts", hosts), ("ranks_per_host", ranks_per_host)):
        if value < 1:
            raise UsageError(f"{name} must be a positive integer, not {value}")
    ranks = hosts * ranks_per_host
    return CollectivePlan(
        name="hierarchical",
        collective=Collective.ALL_REDUCE,
        ranks=ranks,
        chunks=ranks,
        programs=LazyPrograms(all_reduce_hierarchical, ranks, (ranks, 0, ranks_per_host)),
        rank_ordered=ranks == 1,
    )
