"""Broadcast of a module's buffers, such as BatchNorm's running statistics, from rank 0.

All buffers travel in one message before each training forward.
"""

import torch
from torch import Tensor, nn

from slackline.overlap.exchange import Exchange, layout

__all__ = ["Buffers", "Places"]


class Places:
    """The places of the buffers that a module has now, each once.

    A tensor that is later assigned to a buffer's name replaces the first tensor of that name.
    """

    def __init__(self, module: nn.Module) -> None:
        places: dict[int, tuple[nn.Module, str]] = {}
        for owner in module.modules():
            for name, buffer in owner._buffers.items():
                if buffer is not None and buffer.numel():
                    places.setdefault(id(buffer), (owner, name))
        self._places = list(places.values())

    def tensors(self) -> list[Tensor]:
        """Return the buffers that the places have at present."""
        tensors = [owner._buffers[name] for owner, name in self._places]
        return [tensor for tensor in tensors if tensor is not None]


class Buffers:
    """The buffers that a module had when it was wrapped."""

    def __init__(self, module: nn.Module, exchange: Exchange) -> None:
        self._exchange = exchange
        self._places = Places(module)
        tensors = self._places.tensors()
        sizes = [tensor.numel() * tensor.itemsize for tensor in tensors]
        offsets, total = layout(sizes)
        self._packed: list[Tensor] = []
        if total:
            (self._bytes,) = exchange.allocate([(total, torch.uint8)])
            self._packed = [
                self._bytes[offset : offset + size].view(tensor.dtype).view(tensor.shape)
                for offset, size, tensor in zip(offsets, sizes, tensors, strict=True)
            ]

    def follow_rank_0(self) -> None:
        """Copy rank 0's buffers to every rank; block until this rank has them."""
        if not self._packed:
            return
        buffers = self._places.tensors()
        with torch.no_grad():
            if self._exchange.rank == 0:
                torch._foreach_copy_(self._packed, buffers)
            self._exchange.broadcast([self._bytes])
            if self._exchange.rank != 0:
                torch._foreach_copy_(buffers, self._packed)
