"""A gradient exchange on a NIC engine's group, for gradients on an accelerator.

    caller's stream  ──record──────────────────────────────────── wait (Pending.wait) ──
    copies out           └─ copy to host ─ event
    posting thread                         └─ post by key, with the priority
    NIC engine                                └──────────── end
    copies back                                    gate ────┘─ copy to device ─ event

Each flat tensor on the device has memory of the engine in the host's memory, which the driver has
pinned. A wait for a reduction makes the caller's stream wait, and not the host, so the next forward
pass is launched while gradients are still on their way.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from slackline.backend.operations import Order
from slackline.backend.staging import Landing, StagedTransfer
from slackline.overlap.exchange._interface import NicExchange, tensor_at
from slackline.overlap.exchange._layout import laid_out, spanned, zeros
from slackline.overlap.exchange._pending import Pending

if TYPE_CHECKING:
    from slackline.backend.operations import GroupStaging
    from slackline.backend.staging import Device, Event
    from slackline.nic import Group, Transfer

__all__ = ["Posted", "StagedExchange", "StagedGradient"]

_PAGE = 4096
"""The unit in which the driver pins memory; no page can be pinned twice."""


class StagedExchange(NicExchange):
    """A gradient exchange on a NIC engine's group, whose tensors are on an accelerator."""

    def __init__(
        self,
        group: "Group",
        keys: int,
        name: str = "",
        *,
        device: "Device",
        staging: "GroupStaging",
        communicate: torch.dtype | None = None,
    ) -> None:
        """Reduce tensors on `device`; `staging` has the threads that post them.

        The other arguments are those of NicExchange.
        """
        super().__init__(group, keys, name, communicate=communicate)
        self._device, self._staging = device, staging
        self._storages: dict[int, tuple[torch.UntypedStorage, int]] = {}
        """The device memory of each block, and the block's address, by the former's address."""
        self._pinned: dict[int, tuple[int, int]] = {}
        """The address and the bytes of the memory around each pinned block."""

    def allocate(self, requests: Sequence[tuple[int, torch.dtype]]) -> list[Tensor]:
        if not super().allocate(requests):
            return []
        block = next(reversed(self._blocks))
        flats = zeros(requests, self._device.device)  # laid out as the block is
        storage = flats[0].untyped_storage()
        self._storages[storage.data_ptr()] = storage, block
        return flats

    def span(self, first: Tensor, last: Tensor) -> Tensor:
        return spanned(first, last)

    def rearrange(self, flats: Sequence[Tensor]) -> list[Tensor]:
        return laid_out(flats)

    def release(self) -> None:
        super().release()
        self._storages.clear()

    def reduction(
        self, key: int, flat: Tensor, *, average: bool, exact: bool = False
    ) -> Callable[[int], Pending]:
        communicate = None if exact else self._communicate
        # A copy between the types runs on the device, so the elements pass the bus as they travel.
        sent = self._sent(self._host(flat), communicate)
        posting = self._posting(key, sent, average=average, ordered=communicate is not None)

        def post(priority: int) -> Pending:
            self._staging.admit()
            gradient = StagedGradient(self._device, flat, sent)
            transfer = self._staging.post(Order.COLLECTIVE, partial(posting, priority), gradient)
            return Posted(self._staging.follow(gradient, transfer))

        return post

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            if not tensor.numel():
                continue
            flat = tensor.as_strided((tensor.numel(),), (1,))
            host = torch.empty_like(flat, device="cpu")
            copies = self._device.copies()
            copies.to_host(partial(_copy, host, flat), [flat]).synchronize()
            super().broadcast([host])
            landed = copies.to_device(partial(_copy, flat, host), [flat])
            landed.synchronize()  # The host's memory goes.
            self._device.follow(landed)

    def _host(self, flat: Tensor) -> Tensor:
        """Return the registered memory of a flat tensor."""
        start = flat.untyped_storage().data_ptr()
        _, block = self._storages[start]
        return tensor_at(block + flat.data_ptr() - start, flat.numel(), flat.dtype)

    def _reserve(self, nbytes: int) -> int:
        whole = -(-nbytes // _PAGE) * _PAGE
        around = super()._reserve(whole + _PAGE)
        address = -(-around // _PAGE) * _PAGE
        try:
            self._device.pin(address, whole)
        except BaseException:
            super()._free(around)
            raise
        self._pinned[address] = around, whole
        return address

    def _free(self, address: int) -> None:
        around, _ = self._pinned.pop(address)
        self._device.unpin(address)
        super()._free(around)


class StagedGradient:
    """A flat tensor on the device and its memory of the engine, as the buffers of one reduction."""

    def __init__(
        self,
        device: "Device",
        flat: Tensor,
        sent: Tensor,
        nodes: Sequence[tuple[Tensor, Tensor]] = (),
    ) -> None:
        """Copy `flat` to `sent`; `nodes` are further targets and sources, which stay there."""
        self.device, self._flat, self._sent = device, flat, sent
        self._copies = device.copies()
        copies = [(sent, flat), *nodes]
        sources = [source for _, source in copies]
        self._departed = self._copies.to_host(partial(_copy_all, copies), sources)

    def departed(self) -> "Event":
        return self._departed

    def staged(
        self, transfer: "Transfer", failed_late: Callable[[StagedTransfer], None]
    ) -> StagedTransfer:
        back = partial(_copy, self._flat, self._sent)
        landing = Landing(
            self.device, self._copies, back, [self._flat], [self._sent], transfer=transfer
        )
        return StagedTransfer(self.device, transfer, [landing], failed_late)


class Posted:
    """A posted reduction; a wait holds the caller's stream."""

    def __init__(self, transfer: StagedTransfer) -> None:
        self._transfer = transfer
        self.ended_ns = 0
        """The end by the monotonic clock in ns; 0 while pending."""
        transfer.add_done_callback(self._end)

    def done(self) -> bool:
        return self._transfer.done()

    def wait(self) -> None:
        """Make the caller's current stream wait; raise the error of a reduction that has failed.

        The error of one that fails later is raised by the next reduction that is posted.
        """
        self._transfer.order()

    def _end(self, error: BaseException | None) -> None:
        self.ended_ns = time.monotonic_ns()


def _copy(target: Tensor, source: Tensor) -> None:
    with torch.inference_mode():
        target.copy_(source, non_blocking=True)


def _copy_all(copies: Sequence[tuple[Tensor, Tensor]]) -> None:
    for target, source in copies:
        _copy(target, source)
