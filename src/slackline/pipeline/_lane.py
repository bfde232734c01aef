"""Copies between a stage's device and host memory: the interface, and its version for CPUs."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch import distributed as dist

from slackline.backend import empty
from slackline.nic import Transfer
from slackline.pipeline._message import Entry, pack, unpack

__all__ = ["HostLane", "Lane"]

_MOST_SIZES = 32

Entries = Sequence[Entry]
Tensors = Sequence[Tensor | None]


class Lane(Protocol):
    """The message buffers of a stage's device, and the copies from and to them.

    The engine sends from the buffers and receives into them.
    """

    def outgoing(self, nbytes: int) -> Tensor:
        """Return `nbytes` bytes of host memory for a message to send."""

    def incoming(self, nbytes: int) -> Tensor:
        """Return `nbytes` bytes of host memory to receive a message in."""

    def fill(
        self, body: Tensor, entries: Sequence[Entry], tensors: Sequence[Tensor | None]
    ) -> None:
        """Copy tensors into the body of a message; copies may still run when the call returns."""

    def post(self, buffer: Tensor, posting: Callable[[], Transfer], *, inline: bool) -> None:
        """Call `posting` once the copies of the message are done; reuse `buffer` after the send.

        With `inline`, the caller's thread does everything and blocks until the send has ended. The
        error of a failed send is raised here if it is inline, else in a later call of `outgoing`.
        """

    def land(self, buffer: Tensor, start: int, entries: Entries) -> list[Tensor | None]:
        """Return the tensors of an arrived message, on the stage's device.

        The message's body begins at byte `start` of `buffer`.
        """

    def close(self) -> None:
        """Free the message buffers; no messages may follow."""


class HostLane:
    """The message buffers of stages on the CPU.

    Outgoing messages are packed into memory that the engine has registered, which peers on the same
    host read in place. Tensors of an arrived message are views of its buffer.
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
