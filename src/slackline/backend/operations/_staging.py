"""The operations of a group on accelerators: the queues that post them, and their late errors."""

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch

from slackline.backend.operations._callbacks import Order
from slackline.backend.staging import (
    PIECE_BYTES,
    BlockRing,
    Device,
    DeviceBuffers,
    Event,
    Landing,
    Piece,
    PostingQueue,
    StagedTransfer,
    flat,
    is_plain,
    pieces_of,
)
from slackline.errors import ClosedError
from slackline.nic import Transfer

__all__ = ["GroupStaging", "StagedBuffers"]

_log = logging.getLogger("slackline.backend")


class StagedBuffers(Protocol):
    """The tensors of one operation on a device, and their memory on the host."""

    @property
    def device(self) -> Device:
        """The device of the tensors."""

    def departed(self) -> Event | None:
        """Return the event of the end of all copies to the host; None if there are none."""

    def staged(
        self, transfer: Transfer, failed_late: Callable[[StagedTransfer], None]
    ) -> StagedTransfer:
        """Return a Transfer that follows `transfer` and copies the results to the device.

        `failed_late` is passed on to StagedTransfer.
        """


class GroupStaging:
    """The staged operations of one group, created by the group's first operation on an accelerator.

    From then on, one thread posts the group's collectives and another thread posts the group's
    sends, also those on CPU tensors, each in the order of the calls.
    """

    def __init__(self) -> None:
        self._collectives = PostingQueue("slackline-collectives")
        self._sends = PostingQueue("slackline-sends")
        self._blocks = BlockRing()
        self._lock = threading.Lock()
        self._running: set[StagedTransfer] = set()
        self._failed: list[StagedTransfer] = []
        self._closed = False
        self._told = False
        """True once an error of a staged operation has been raised."""

    def post(
        self,
        order: Order,
        posting: Callable[[], Transfer],
        buffers: StagedBuffers | None = None,
    ) -> Transfer:
        """Post an operation in its order, after the copies of `buffers` to the host.

        Returns its Transfer. Blocks for nothing but the posting of a receive.
        """
        if order is Order.RECEIVE:
            return posting()
        queue = self._collectives if order is Order.COLLECTIVE else self._sends
        departed = None if buffers is None else buffers.departed()
        if buffers is None or departed is None:
            return queue.post(posting)
        device = buffers.device

        def depart() -> Transfer:
            try:
                device.enter()
                departed.synchronize()
                return posting()
            finally:
                device.departures.end()

        device.departures.begin()
        return queue.post(depart)

    def follow(self, buffers: StagedBuffers, transfer: Transfer) -> StagedTransfer:
        """Return a Transfer that follows a posted operation on device tensors."""
        return self._running_with(buffers.staged(transfer, self._failed.append))

    def post_long(
        self,
        device: Device,
        source: torch.Tensor,
        target: torch.Tensor,
        post: Callable[[torch.Tensor], Transfer],
    ) -> StagedTransfer:
        """Post an all_reduce of a long tensor in pieces; return one Transfer without blocking.

        `post` starts the transfer of a piece in host memory, and the result replaces the piece
        there. `source` has no gaps; `target` has the same elements.
        """
        if is_plain(target):
            pieces = pieces_of(flat(source), flat(target), PIECE_BYTES)
            return self.post_pieces(device, pieces, post)
        dense = flat(source)
        pieces = pieces_of(dense, dense, PIECE_BYTES)
        return self.post_pieces(device, pieces, post, home=(target, dense))

    def post_pieces(
        self,
        device: Device,
        pieces: Sequence[Piece],
        post: Callable[[torch.Tensor], Transfer],
        *,
        home: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> StagedTransfer:
        """Post a collective in pieces; return one Transfer without blocking.

        `post` starts the transfer of a piece in host memory, in place. `home` is a tensor with
        gaps, and the tensor with the same elements that the pieces write.
        """
        copies = device.copies()
        landings: list[Landing] = []

        def posting() -> Transfer:
            try:
                device.enter()
                transfer = self._blocks.pass_through(device, copies, pieces, post, landings)
                if home is not None:
                    landings.append(
                        Landing(device, copies, partial(_copy, *home), home, after=list(landings))
                    )
                return transfer
            finally:
                device.departures.end()

        device.departures.begin()
        transfer = self._collectives.post(posting)
        return self._running_with(
            StagedTransfer(device, transfer, landings, self._failed.append, pieces)
        )

    @staticmethod
    def buffers(device: Device) -> DeviceBuffers:
        """Return new buffers in host memory for an operation on a device's tensors."""
        return DeviceBuffers(device)

    def admit(self) -> None:
        """Raise ClosedError if the group has ended; otherwise call `check`."""
        if self._closed:
            raise ClosedError("the process group has ended")
        self.check()

    def check(self) -> None:
        """Raise the error of an operation that failed after `order`, unless already raised."""
        while self._failed:
            failed = self._failed.pop(0)
            if failed.told:
                self._told = True
            elif failed.error is not None:
                failed.told = self._told = True
                raise failed.error

    def errors_are_known(self) -> None:
        """Have `end` log late errors in place of raising them: the program knows their cause."""
        self._told = True

    def settle(self) -> None:
        """Block until all staged operations have ended; raise the error of a late failure."""
        self._await_all()
        self.check()

    def end(self) -> None:
        """Wait for the operations of a closed group; raise an error only if none was raised before.

        A program that ends a group because of an error must be able to end the group. Further
        errors are therefore only logged.
        """
        self._await_all()
        if not self._told:
            self.check()
        for failed in self._failed:
            if not failed.told:
                _log.error("an operation failed after a stream had begun to wait: %s", failed.error)

    def close(self) -> None:
        """Post all queued operations and end the threads; block until the threads have ended."""
        self._closed = True
        self._collectives.close()
        self._sends.close()

    def _await_all(self) -> None:
        with self._lock:
            running = list(self._running)
        for transfer in running:
            transfer.settle()

    def _running_with(self, transfer: StagedTransfer) -> StagedTransfer:
        with self._lock:
            self._running.add(transfer)

        def end(error: BaseException | None) -> None:
            with self._lock:
                self._running.discard(transfer)

        transfer.add_done_callback(end)
        return transfer


def _copy(target: torch.Tensor, dense: torch.Tensor) -> None:
    with torch.inference_mode():
        target.copy_(dense.view(target.shape))
