"""The plan that adds several nodes of each rank in one fixed binary tree.

Chunk p + ranks * n is part p of node n. Rank p reduces part p of all nodes; the result is chunk p.
"""

from collections.abc import Iterator

from slackline.plan.collective._plan import (
    NOBODY,
    Collective,
    CollectivePlan,
    Instruction,
    Kind,
    Part,
)
from slackline.plan.collective._sum_tree import Runs

__all__ = ["TREE", "all_reduce_tree", "tree_part", "tree_plan"]

TREE = "tree"


def all_reduce_tree(rank: int, ranks: int, *owners: int) -> Iterator[Instruction]:
    """Yield a rank's instructions; `owners` has the rank of each node, in the order of leaves.

    With as many nodes as ranks these are the instructions of a mesh, but for the numbers of chunks.
    With m nodes of n ranks, rank r's port carries at most (m_r + 1) (n - 1) / n times the buffer's
    bytes out, where it has m_r nodes.
    """
    others = [(rank + step) % ranks for step in range(1, ranks)]
    for part in others:
        for node, owner in enumerate(owners):
            if owner == rank:
                yield Instruction(Kind.SEND, part, part + ranks * node)
    for node, owner in enumerate(owners):
        if owner != rank:
            yield Instruction(Kind.BUFFER, owner, rank + ranks * node)
    yield Instruction(Kind.REDUCE_ALL, NOBODY, rank)
    for peer in others:
        yield Instruction(Kind.SEND, peer, rank)
    for part in others:
        yield Instruction(Kind.COPY, part, part)


def tree_plan(runs: Runs) -> CollectivePlan:
    """Return the plan for ranks with these runs of leaves."""
    ranks, owners = len(runs.lengths), runs.owners
    return CollectivePlan(
        name=TREE,
        collective=Collective.ALL_REDUCE,
        ranks=ranks,
        chunks=ranks * len(owners),
        programs=tuple(tuple(all_reduce_tree(rank, ranks, *owners)) for rank in range(ranks)),
        rank_ordered=False,
        runs=runs,
    )


def tree_part(runs: Runs, rank: int) -> Part:
    """Return a rank's part of the plan that `tree_plan` makes."""
    ranks, owners = len(runs.lengths), runs.owners
    return Part(
        name=TREE,
        collective=Collective.ALL_REDUCE,
        ranks=ranks,
        helpers=0,
        chunks=ranks * len(owners),
        member=rank,
        program=tuple(all_reduce_tree(rank, ranks, *owners)),
        forwards=ranks > 1,
        adds=False,
        runs=runs,
    )
