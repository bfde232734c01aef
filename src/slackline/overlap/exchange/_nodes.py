"""Sums over virtual ranks, of which each rank has a run, by a NIC engine's group.

flat tensors   the last virtual rank of this rank, with the sums that PartSums adds
node 0         the first node of this rank, if it has several, in a block of the same layout
node 1         the next one, and so on
"""

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from slackline.errors import UsageError
from slackline.nic import Operation
from slackline.overlap.exchange._interface import NicExchange, tensor_at, wire_type
from slackline.overlap.exchange._part_sums import PartGradient, PartSums
from slackline.overlap.exchange._pending import Pending
from slackline.wire import ReduceOp

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackline.nic import Group
    from slackline.plan.collective import Runs

__all__ = ["OUTSIDE", "NodeExchange"]

OUTSIDE = "a model with virtual ranks is trained in `with part`, for each part of parts(step)"
"""The message of the error when gradients are posted outside of a part."""


class NodeExchange(NicExchange):
    """A gradient exchange on a NIC engine's group in which each rank has a run of virtual ranks."""

    def __init__(self, group: "Group", keys: int, name: str, runs: "Runs", **options: Any) -> None:
        """Create the exchange of `runs`, which has a length for each rank of the group.

        `options` are those of another base class.
        """
        super().__init__(group, keys, name, **options)
        self.rank_ordered = True  # A sum does not depend on the other gradients.
        self._runs = runs
        self._sums = PartSums(runs.tree.folds(runs.of(self.rank)), self)
        self._last = False
        self._waiting: dict[tuple[int, int], int] = {}
        """The address of each block of waiting sums, by the block of gradients and the number."""

    @property
    def virtual_ranks(self) -> int:
        """The number of virtual ranks of a step on all ranks together."""
        return self._runs.tree.leaves

    @property
    def run(self) -> range:
        """The numbers of this rank's virtual ranks."""
        return self._runs.of(self.rank)

    @property
    def folded(self) -> int:
        """The number of virtual ranks of this step whose gradients are in waiting sums."""
        return self._sums.folded

    def begin(self) -> None:
        """Begin a step: no virtual rank has gradients yet."""
        self._sums.begin()
        self._last = False

    def expect_last(self) -> None:
        """Let the reductions of this step begin: the next gradients are the last ones."""
        self._last = True
        self._sums.place()

    def fold(self, parts: Sequence[PartGradient]) -> None:
        """Take the gradients of a virtual rank, which is not the last one, as a node."""
        self._sums.fold(parts)

    def release(self) -> None:
        while self._waiting:
            self._free(self._waiting.popitem()[1])
        super().release()

    def reduction(
        self, key: int, flat: Tensor, *, average: bool, exact: bool = False
    ) -> "Callable[[int], Pending]":
        if exact:
            return super().reduction(key, flat, average=average, exact=True)
        count, dtype = flat.numel(), wire_type(flat.dtype)
        op = ReduceOp.AVG if average else ReduceOp.SUM
        address = flat.data_ptr()
        nodes = [self.node_memory(flat, number).data_ptr() for number in range(self._sums.nodes)]
        operation = Operation.all_reduce_nodes(
            [*nodes, address], address, count, dtype, op, self._runs, tag=self._first_tag + key
        )
        post_nodes = self._poster(key, flat, operation)

        def post(priority: int) -> "Pending":
            if not self._last:
                raise UsageError(OUTSIDE)
            self._sums.add_to(flat)
            return post_nodes(priority)

        return post

    def block_of(self, flat: Tensor) -> int:
        """Return the address of the block of memory in which a flat tensor lies."""
        address = flat.data_ptr()
        return max(block for block in self._blocks if block <= address)

    def node_memory(self, flat: Tensor, number: int) -> Tensor:
        """Return the memory of the sum with a number for a flat tensor of gradients."""
        address, block = flat.data_ptr(), self.block_of(flat)
        place = block, number
        if place not in self._waiting:
            self._waiting[place] = self._reserve(self._blocks[block])
            ctypes.memset(self._waiting[place], 0, self._blocks[block])
        return tensor_at(self._waiting[place] + address - block, flat.numel(), flat.dtype)
