"""A fixed binary tree that adds contributions, whatever the number of ranks that have them.

    level 3                 0                        a tree of 5 leaves
    level 2         0               1                a node without a right neighbour is its parent:
    level 1     0       1       2                    leaf 4 is node 2 of level 1, node 1 of level 2
    level 0   0   1   2   3   4

Floating-point addition is not associative, so a sum has the same bits on any number of ranks only
if its order does not depend on the ranks. Each rank has the sum of a run of leaves as a few nodes
of the tree, and the ranks' nodes are combined as the tree says.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from slackline._lazy import record
from slackline.errors import UsageError

__all__ = ["MOST_LEAVES", "Node", "Runs", "SumTree", "even_runs"]

MOST_LEAVES = 1 << 15
"""The largest number of leaves. At most 16 nodes then wait for a neighbour at a time, for which the
engine has room."""


class Node(NamedTuple):
    """A node: the sum of leaves place * 2**level to (place + 1) * 2**level - 1 that exist."""

    level: int
    place: int


@record(frozen=True, slots=True)
class SumTree:
    """The binary tree over `leaves` contributions."""

    leaves: int

    def __post_init__(self) -> None:
        if not 1 <= self.leaves <= MOST_LEAVES:
            raise UsageError(f"a tree has 1 to {MOST_LEAVES} leaves, not {self.leaves}")

    @property
    def root(self) -> Node:
        """The node of the whole sum."""
        return Node((self.leaves - 1).bit_length(), 0)

    def span(self, node: Node) -> range:
        """Return the leaves of a node."""
        return range(
            min(node.place << node.level, self.leaves),
            min((node.place + 1) << node.level, self.leaves),
        )

    def cover(self, run: range) -> tuple[Node, ...]:
        """Return the fewest nodes whose leaves are those of `run`, in their order.

        A node without a right neighbour counts as its parent, as high up as it can.
        """
        if not 0 <= run.start <= run.stop <= self.leaves:
            raise UsageError(f"a run of {self.leaves} leaves cannot be {run.start} to {run.stop}")
        nodes, first = list[Node](), run.start
        while first < run.stop:
            node = Node(0, first)
            while node != self.root and node.place % 2 == 0:
                parent = Node(node.level + 1, node.place // 2)
                if self.span(parent).stop > run.stop:
                    break
                node = parent
            nodes.append(node)
            first = self.span(node).stop
        return tuple(nodes)

    def sums(self, nodes: Sequence[Node]) -> tuple[int, ...]:
        """Return how many sums follow each node, where the nodes come one after the other.

        A sum combines the last two values that wait, a node or an earlier sum each. Raises
        UsageError unless the nodes are disjoint, in order, and together the whole tree.
        """
        sums, waiting = self._combine(nodes)
        if waiting != [self.root]:
            raise UsageError(f"{len(nodes)} nodes are not a tree of {self.leaves} leaves")
        return sums

    def folds(self, run: range) -> tuple[int, ...]:
        """Return how many sums follow each leaf of a run, where the leaves come one by one.

        The values that wait at the end are the nodes of `cover`.
        """
        return self._combine([Node(0, leaf) for leaf in run])[0]

    def _combine(self, nodes: Sequence[Node]) -> tuple[tuple[int, ...], list[Node]]:
        """Return the number of sums after each node, and the nodes that wait at the end."""
        waiting, sums = list[Node](), list[int]()
        for node in nodes:
            sums.append(0)
            while node != self.root:
                parent = Node(node.level + 1, node.place // 2)
                if node.place % 2 == 1:
                    if not waiting or waiting[-1] != Node(node.level, node.place - 1):
                        break
                    waiting.pop()
                    sums[-1] += 1
                elif self.span(Node(node.level, node.place + 1)):
                    break  # Its neighbour comes later.
                node = parent
            waiting.append(node)
        return tuple(sums), waiting


@record(frozen=True)
class Runs:
    """The leaves of a tree as the ranks have them: one run after the other, in rank order."""

    tree: SumTree
    lengths: tuple[int, ...]
    """The number of leaves of each rank, at least 1."""

    def __post_init__(self) -> None:
        if min(self.lengths, default=0) < 1 or sum(self.lengths) != self.tree.leaves:
            raise UsageError(
                f"the ranks' runs must have {self.tree.leaves} leaves together and at least one "
                f"each, not {', '.join(map(str, self.lengths)) or 'none'}"
            )

    def of(self, rank: int) -> range:
        """Return the leaves of a rank."""
        first = sum(self.lengths[:rank])
        return range(first, first + self.lengths[rank])

    @cached_property
    def nodes(self) -> tuple[tuple[Node, ...], ...]:
        """The nodes of each rank."""
        return tuple(self.tree.cover(self.of(rank)) for rank in range(len(self.lengths)))

    @cached_property
    def owners(self) -> tuple[int, ...]:
        """The rank of each node; the nodes of all ranks one after the other."""
        return tuple(rank for rank, nodes in enumerate(self.nodes) for _ in nodes)

    @cached_property
    def sums(self) -> tuple[int, ...]:
        """The number of sums that follow each node; see `SumTree.sums`."""
        return self.tree.sums([node for nodes in self.nodes for node in nodes])


def even_runs(leaves: int, ranks: int) -> Runs:
    """Return runs whose lengths differ by at most one; the first ranks have the longer ones.

    Raises UsageError if there are fewer leaves than ranks.
    """
    if not 1 <= ranks <= leaves:
        raise UsageError(f"{leaves} leaves cannot be given to {ranks} ranks, one or more to each")
    each, more = divmod(leaves, ranks)
    return Runs(SumTree(leaves), tuple(each + (rank < more) for rank in range(ranks)))
