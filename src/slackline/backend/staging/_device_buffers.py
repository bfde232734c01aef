"""The host memory of an operation's tensors on an accelerator."""

from collections.abc import Callable
from functools import partial

import torch

from slackline.backend.staging._buffers import check_distinct, check_on, is_plain
from slackline.backend.staging._device import Copies, Device, Event
from slackline.backend.staging._landing import Landing, StagedTransfer
from slackline.nic import Transfer

__all__ = ["DeviceBuffers"]


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
            landings.append(
                Landing(self.device, self._copies, copy, targets, hosts, transfer=transfer)
            )
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
        check_on(self.device.device, tensor)


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
