"""Gradients of several virtual ranks on an accelerator, added in the order of a fixed tree.

    device   gradients of the present virtual rank, waiting sums     added on the device
    host     this rank's nodes, copied when the last part posts      added by the engine

A rank's own additions run on the device, on the caller's stream. When the last part's gradients
are posted, this rank's nodes are copied to memory of the engine, and the result comes back to the
gradients.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from slackline.backend.operations import Order
from slackline.errors import UsageError
from slackline.nic import Operation
from slackline.overlap.exchange._interface import tensor_at, wire_type
from slackline.overlap.exchange._layout import on
from slackline.overlap.exchange._nodes import OUTSIDE, NodeExchange
from slackline.overlap.exchange._pending import Pending
from slackline.overlap.exchange._staged import Posted, StagedExchange, StagedGradient
from slackline.wire import ReduceOp

__all__ = ["StagedNodeExchange"]


class StagedNodeExchange(NodeExchange, StagedExchange):
    """A NodeExchange whose tensors are on an accelerator.

    The arguments are those of NodeExchange, and the `device` and `staging` of StagedExchange.
    """

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._on_device: dict[tuple[int, int], torch.UntypedStorage] = {}
        """The memory of waiting sums, by the block of gradients and the number."""

    def release(self) -> None:
        super().release()
        self._on_device.clear()

    def reduction(
        self, key: int, flat: Tensor, *, average: bool, exact: bool = False
    ) -> Callable[[int], Pending]:
        if exact:
            return StagedExchange.reduction(self, key, flat, average=average, exact=True)
        waiting = [self.node_memory(flat, number) for number in range(self._sums.nodes)]
        hosts = [self._host_at(flat, number) for number in range(self._sums.nodes)]
        sent = self._host(flat)
        address, count, dtype = sent.data_ptr(), sent.numel(), wire_type(sent.dtype)
        operation = Operation.all_reduce_nodes(
            [*(host.data_ptr() for host in hosts), address],
            address,
            count,
            dtype,
            ReduceOp.AVG if average else ReduceOp.SUM,
            self._runs,
            tag=self._first_tag + key,
        )
        posting = self._poster(key, sent, operation)

        def post(priority: int) -> Pending:
            if not self._last:
                raise UsageError(OUTSIDE)
            self._sums.add_to(flat)
            self._staging.admit()
            gradient = StagedGradient(
                self._device, flat, sent, list(zip(hosts, waiting, strict=True))
            )
            transfer = self._staging.post(Order.COLLECTIVE, partial(posting, priority), gradient)
            return Posted(self._staging.follow(gradient, transfer))

        return post

    def block_of(self, flat: Tensor) -> int:
        _, block = self._storages[flat.untyped_storage().data_ptr()]
        return block

    def node_memory(self, flat: Tensor, number: int) -> Tensor:
        storage = flat.untyped_storage()
        place = self.block_of(flat), number
        if place not in self._on_device:
            made = torch.zeros(storage.nbytes(), dtype=torch.uint8, device=flat.device)
            self._on_device[place] = made.untyped_storage()
        offset = flat.data_ptr() - storage.data_ptr()
        return on(self._on_device[place], offset, flat.numel(), flat.dtype)

    def _host_at(self, flat: Tensor, number: int) -> Tensor:
        """Return the registered memory to which the waiting sum of a flat tensor is copied."""
        place = self.block_of(flat), number
        if place not in self._waiting:
            self._waiting[place] = self._reserve(self._blocks[place[0]])
        offset = flat.data_ptr() - flat.untyped_storage().data_ptr()
        return tensor_at(self._waiting[place] + offset, flat.numel(), flat.dtype)
