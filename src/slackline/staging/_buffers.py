"""The host memory of an operation's tensors: a tensor's own memory, or a contiguous copy's.

Copies run on threads that are not in the caller's inference mode. Each copy enters this mode
itself, since only so may it write a tensor that the caller made there. The version counters of all
other tensors still count the write.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch

from slackline.errors import UsageError
from slackline.nic import Transfer
from slackline.staging._device import Copies, Device, Event
from slackline.staging._landing import Landing, StagedTransfer
from slackline.staging._plain import check_distinct, is_plain, plain_copy

__all__ = ["Buffers", "DeviceBuffers", "HostBuffers", "flat"]


class Buffers(Protocol):
    """The contiguous host memory of one operation's tensors.

    The caller must keep the object until the operation ends.
    """

    def source(self, tensor: torch.Tensor) -> int:
        """Return the address from which an operation reads the tensor's contiguous elements."""

    def temporary(self, tensor: torch.Tensor) -> int:
        """Return the address of a temporary tensor's elements, and keep the tensor alive."""

    def target(self, tensor: torch.Tensor) -> int:
        """Return the address to which an operation writes the tensor's elements."""

    def in_place(self, tensor: torch.Tensor) -> int:
        """Return the address of a tensor's elements that an operation reads and overwrites."""


class HostBuffers:
    """The memory of an operation's CPU tensors; only non-contiguous tensors are copied."""

    __slots__ = ("_kept", "_results")

    def __init__(self) -> None:
        self._kept: list[torch.Tensor] = []
        self._results: list[tuple[torch.Tensor, torch.Tensor]] = []

    def source(self, tensor: torch.Tensor) -> int:
        return self._keep(tensor if is_plain(tensor) else plain_copy(tensor))

    def temporary(self, tensor: torch.Tensor) -> int:
        return self._keep(tensor.contiguous())

    def target(self, tensor: torch.Tensor) -> int:
        if is_plain(tensor):
            return self._keep(tensor)
        check_distinct(tensor)
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        return self._beside(tensor, copy)

    def in_place(self, tensor: torch.Tensor) -> int:
        if is_plain(tensor):
            return self._keep(tensor)
        check_distinct(tensor)
        return self._beside(tensor, plain_copy(tensor))

    @property
    def copies_back(self) -> bool:
        """True if `copy_back` has anything to copy."""
        return bool(self._results)

    def copy_back(self) -> None:
        """Copy results to their tensors; to be called once after success, on any thread."""
        with torch.inference_mode():
            for tensor, copy in self._results:
                tensor.copy_(copy)

    def _keep(self, tensor: torch.Tensor) -> int:
        self._kept.append(tensor)
        return tensor.data_ptr()

    def _beside(self, tensor: torch.Tensor, copy: torch.Tensor) -> int:
        self._results.append((tensor, copy))
        return copy.data_ptr()


class DeviceBuffers:
    """The host memory of one operation on tensors of an accelerator: a copy of each tensor."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._copies = device.copies()
        self._results: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]] = []
        self._sources: list[torch.Tensor] = []
        self._departed: Event | None = None

    def source(self, tensor: torch.Tensor) -> int:
        return self._to_host(tensor, self._copies).data_ptr()

    def temporary(self, tensor: torch.Tensor) -> int:
        # The tensor was computed after `_copies` was made, so its copy must follow later work.
        return self._to_host(tensor, self.device.copies()).data_ptr()

    def target(self, tensor: torch.Tensor) -> int:
        self._check(tensor)
        return self._from_host(tensor, self._host_like(tensor))

    def in_place(self, tensor: torch.Tensor) -> int:
        return self._from_host(tensor, self._to_host(tensor, self._copies))

    def departed(self) -> Event | None:
        """Return the event of the end of all copies to the host; None if there are none."""
        return self._departed

    def staged(
        self, transfer: Transfer, failed_late: Callable[[StagedTransfer], None]
    ) -> StagedTransfer:
        """Return a Transfer that follows `transfer` and copies the results to the device.

        `failed_late` is passed on to StagedTransfer.
        """
        landings = []
        if self._results:
            targets = [
                each for row in self._results for each in (row[0], row[2]) if each is not None
            ]
            hosts = [host for _, host, _ in self._results]
            copy = partial(_copy_back, self._results)
            landings.append(Landing(self.device, self._copies, copy, targets, hosts))
        return StagedTransfer(self.device, transfer, landings, failed_late, self._sources)

    def _to_host(self, tensor: torch.Tensor, copies: Copies) -> torch.Tensor:
        self._check(tensor)
        host = self._host_like(tensor)
        copy = partial(_copy_out, host, tensor)
        self._departed = copies.to_host(copy, [tensor])
        self._sources.append(host)
        return host

    def _from_host(self, tensor: torch.Tensor, host: torch.Tensor) -> int:
        # A copy to a tensor with gaps needs memory on the device. The memory is allocated here,
        # since an allocation may block, and the thread that launches the copy back must not.
        dense = None
        if not is_plain(tensor):
            check_distinct(tensor)
            dense = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        self._results.append((tensor, host, dense))
        return host.data_ptr()

    def _host_like(self, tensor: torch.Tensor) -> torch.Tensor:
        nbytes = tensor.numel() * tensor.element_size()
        return self.device.allocate(nbytes).view(tensor.dtype).view(tensor.shape)

    def _check(self, tensor: torch.Tensor) -> None:
        is_plain(tensor)
        if tensor.device != self.device.device:
            raise UsageError(
                "an operation's tensors must be on one device, not on "
                f"{self.device.device} and {tensor.device}"
            )


def _copy_out(host: torch.Tensor, tensor: torch.Tensor) -> None:
    with torch.inference_mode():
        host.copy_(tensor, non_blocking=True)


def _copy_back(
    results: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]],
) -> None:
    with torch.inference_mode():
        for tensor, host, dense in results:
            if dense is None:
                tensor.copy_(host, non_blocking=True)
            else:
                tensor.copy_(dense.copy_(host, non_blocking=True))


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's elements in one dimension: a view if `is_plain`, else a copy."""
    return (tensor.detach() if is_plain(tensor) else plain_copy(tensor)).view(-1)
