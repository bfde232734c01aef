"""The accelerators of this process, each created by the first operation on its tensors."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from slackline.errors import UsageError

if TYPE_CHECKING:
    from slackline.staging._device import Device

__all__ = ["device_of"]


def device_of(device: torch.device) -> Device | None:
    """Return the accelerator that stages tensors on `device`; None for the CPU.

    Raises UsageError for a device other than cpu and cuda.
    """
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        raise UsageError(f"slackline takes tensors on cpu and cuda, not on {device}")
    return _cuda_device(torch.cuda.current_device() if device.index is None else device.index)


@cache
def _cuda_device(index: int) -> Device:
    """Return the process's only CudaDevice with this index, which all groups share.

    The copies to the host that are not launched yet (Departures) are counted for all groups
    together.
    """
    from slackline.staging._cuda import CudaDevice  # A rank without tensors on CUDA needs none.

    return CudaDevice(torch.device("cuda", index))
