"""The hierarchical all_reduce: within each host, then between hosts, then within each host again.

With q ranks on each host, rank h * q + j is rank j of host h. The rank reduces part j of the buffer
with the ranks of its host, round a ring in memory, and then with rank j of all other hosts, round a
ring over the network. The result goes back the same way. The plan is thus a torus whose rows are
hosts:

    host 0    0 - 1 - 2 -     in memory
              |   |   |       over the network, q rings side by side
    host 1    3 - 4 - 5 -

The ranks of a host add a part in the order of their ring, then the sums of all hosts are added in
the order of the ring of hosts. The order of additions is not rank order, but the results are
bit-identical on all ranks and in all runs.

For a buffer of S bytes, 2 (p - 1) / p S bytes leave each of p hosts, as few as with one rank on
each host, and each of n ranks adds (n - 1) / n S bytes. Each access to a program generates it anew,
so that with thousands of ranks only the programs in use are in memory.
"""

from collections.abc import Iterator

from slackline.errors import UsageError
from slackline.plan.collective._plan import Collective, CollectivePlan, Instruction, LazyPrograms
from slackline.plan.collective.algorithms.torus import torus_program

__all__ = ["all_reduce_hierarchical", "hierarchical"]


def all_reduce_hierarchical(
    rank: int, ranks: int, root: int, ranks_per_host: int
) -> Iterator[Instruction]:
    """Yield a rank's instructions: reduce within the host, then between hosts, then spread."""
    # Each host lists the chunks from its own chunk on, so that the programs of hosts differ only in
    # rank and chunk numbers.
    row = rank // ranks_per_host
    return torus_program(rank, ranks // ranks_per_host, ranks_per_host, first_row=row)


def hierarchical(hosts: int, ranks_per_host: int) -> CollectivePlan:
    """Return the all_reduce over hosts with `ranks_per_host` ranks each, numbered host by host.

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
