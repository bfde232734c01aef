"""Gradients of several virtual ranks on one rank, added in the order of a fixed tree.

The gradients of a virtual rank arrive in the blocks that all reductions use. A sum that waits for
its neighbour in the tree lies in a further block, at the same place.

    blocks       the gradients of the present virtual rank
    waiting[0]   the first node of this rank, or a part of it
    waiting[1]   the next one, and so on: at most one for each level of the tree
"""

from collections.abc import Sequence
from itertools import groupby
from operator import is_
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from slackline.errors import UsageError
from slackline.nic import Operation
from slackline.overlap.exchange._interface import NicExchange, tensor_at, wire_type
from slackline.overlap.exchange._pending import Pending
from slackline.wire import ReduceOp

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackline.nic import Group
    from slackline.plan.collective import Runs

__all__ = ["NodeExchange"]


class NodeExchange(NicExchange):
    """A gradient exchange on a NIC engine's group in which each rank has a run of virtual ranks."""

    def __init__(self, group: "Group", keys: int, name: str, runs: "Runs") -> None:
        """Create the exchange of `runs`, which has a length for each rank of the group."""
        super().__init__(group, keys, name)
        self.rank_ordered = True  # A sum does not depend on the other gradients.
        self._runs = runs
        self._folds = runs.tree.folds(runs.of(self.rank))
        self._folded = 0
        self._last = False
        self._known: tuple[list[Tensor], list[Tensor]] = [], []
        """The flat tensors of the latest `fold`, and the result of `_spans` for them."""
        self._waiting: dict[tuple[int, int], int] = {}
        """The address of each block of waiting sums, by the block of gradients and the depth."""

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
        return self._folded

    def begin(self) -> None:
        """Begin a step: no virtual rank has gradients yet."""
        self._folded, self._last = 0, False

    def expect_last(self) -> None:
        """Let the reductions of this step begin: the next gradients are the last ones."""
        self._last = True

    def fold(self, flats: Sequence[Tensor]) -> None:
        """Take the gradients of a virtual rank, which is not the last one, as a node of the tree.

        `flats` are the flat tensors of all gradients.
        """
        depth, sums = self._depth(self._folded), self._folds[self._folded]
        with torch.no_grad():
            for span in self._spans(flats):
                if sums == 0:
                    self._at(span, depth).copy_(span)
                source = span
                for level in range(depth - 1, depth - 1 - sums, -1):
                    source = self._at(span, level).add_(source)
        self._folded += 1

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
        last = len(self._folds) - 1
        depth, sums = self._depth(last), self._folds[last]
        added = [self._at(flat, level) for level in range(depth - 1, depth - 1 - sums, -1)]
        address = flat.data_ptr()
        nodes = [self._at(flat, level).data_ptr() for level in range(depth - sums)]
        operation = Operation.all_reduce_nodes(
            [*nodes, address], address, count, dtype, op, self._runs, tag=self._first_tag + key
        )
        post_nodes = self._poster(key, flat, operation)

        def post(priority: int) -> "Pending":
            if not self._last:
                raise UsageError(
                    "a model with virtual ranks is trained in `with part`, for each part of "
                    "parts(step)"
                )
            with torch.no_grad():
                for waiting in added:
                    flat.add_(waiting)
            return post_nodes(priority)

        return post

    def _spans(self, flats: Sequence[Tensor]) -> list[Tensor]:
        """Return few tensors over the memory of many flat ones, by block and type."""
        known, spans = self._known
        if len(known) == len(flats) and all(map(is_, known, flats)):
            return spans
        ordered = sorted(flats, key=Tensor.data_ptr)
        runs = groupby(ordered, key=lambda flat: (self._block_of(flat), flat.dtype))
        spans = list[Tensor]()
        for _, run in runs:
            first, *more = run
            spans.append(self.span(first, more[-1] if more else first))
        self._known = list(flats), spans
        return spans

    def _block_of(self, flat: Tensor) -> int:
        address = flat.data_ptr()
        return max(block for block in self._blocks if block <= address)

    def _depth(self, place: int) -> int:
        """Return the number of sums that wait when the virtual rank at a place begins."""
        return place - sum(self._folds[:place])

    def _at(self, flat: Tensor, depth: int) -> Tensor:
        """Return the waiting sum of a flat tensor of gradients."""
        address, block = flat.data_ptr(), self._block_of(flat)
        place = block, depth
        if place not in self._waiting:
            self._waiting[place] = self._reserve(self._blocks[block])
        return tensor_at(self._waiting[place] + address - block, flat.numel(), flat.dtype)
