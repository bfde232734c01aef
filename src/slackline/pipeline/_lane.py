"""How a stage's tensors get into host memory and out of it: in place of the CPU, here."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch import distributed as dist

from slackline.backend import empty
from slackline.nic import Transfer
from slackline.pipeline._parcel import Entry, pack, unpack

__all__ = ["HostLane", "Lane"]

_MOST_SIZES = 32

Entries = Sequence[Entry]
Tensors = Sequence[Tensor | None]


class Lane(Protocol):
    """Memory that the engine can send from and receive into, and the copies from and to it."""

    def outgoing(self, nbytes: int) -> Tensor:
        """So many bytes of host memory for a message."""

    def incoming(self, nbytes: int) -> Tensor:
        """So many bytes of host memory to receive a message in."""

    def fill(
        self, body: Tensor, entries: Sequence[Entry], tensors: Sequence[Tensor | None]
    ) -> None:
        """Puts the tensors into the message; it may still be under way when this returns."""

    def post(self, buffer: Tensor, posting: Callable[[], Transfer], *, inline: bool) -> None:
        """Posts once the message is whole, and takes `buffer` back when it is gone.

        With `inline` the caller does all of it, and waits. Raises what an earlier send came to.
        """

    def land(self, buffer: Tensor, start: int, entries: Entries) -> list[Tensor | None]:
        """The tensors that arrived in `buffer` from byte `start` on, where the stage computes."""

    def close(self) -> None:
        """No more messages."""


class HostLane:
    """For stages on the CPU: messages are packed into registered memory, which peers on the same
    host read in place, and used where they arrive.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self._free: dict[int, list[Tensor]] = {}
        self._under_way: list[tuple[Transfer, Tensor]] = []

    def outgoing(self, nbytes: int) -> Tensor:
        self._sweep()
        if free := self._free.get(nbytes):
            return free.pop()
        if len(self._free) > _MOST_SIZES:
            self._free.clear()
        return empty(nbytes, dtype=torch.uint8, group=self._group)

    def incoming(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def fill(
        self, body: Tensor, entries: Sequence[Entry], tensors: Sequence[Tensor | None]
    ) -> None:
        pack(body, entries, tensors)

    def post(self, buffer: Tensor, posting: Callable[[], Transfer], *, inline: bool) -> None:
        transfer = posting()
        if inline:
            transfer.wait()
        self._under_way.append((transfer, buffer))

    def land(self, buffer: Tensor, start: int, entries: Entries) -> list[Tensor | None]:
        return unpack(buffer[start:], entries)

    def close(self) -> None:
        self._free.clear()

    def _sweep(self) -> None:
        left = []
        for transfer, buffer in self._under_way:
            if transfer.done():
                transfer.wait()
                self._free.setdefault(buffer.numel(), []).append(buffer)
            else:
                left.append((transfer, buffer))
        self._under_way = left
