"""Tensors in memory that the engine has registered, which peers on the same host read in place."""

import ctypes
import math
import weakref
from typing import Any

import torch
from torch import distributed as dist

from slackline.backend._group import SlacklineGroup
from slackline.errors import UsageError
from slackline.nic import Group

__all__ = ["counters", "empty", "group_of", "slackline_group", "zeros"]


def group_of(process_group: dist.ProcessGroup | None = None) -> Group:
    """Return the NIC engine's Group under a torch process group; None means the default group.

    Raises UsageError for a group of another backend.
    """
    return slackline_group(process_group).nic


def slackline_group(process_group: dist.ProcessGroup | None) -> SlacklineGroup:
    """Return a process group as a SlacklineGroup; None means the default group.

    Raises UsageError for a group of another backend.
    """
    group = dist.group.WORLD if process_group is None else process_group
    if group is None:
        raise UsageError("there is no default process group; call init_process_group first")
    if not isinstance(group, SlacklineGroup):
        raise UsageError(f"the process group must be of backend slackline, not {group.name()}")
    return group


def empty(
    *shape: int, dtype: torch.dtype | None = None, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """Return an uninitialised CPU tensor in memory that the engine has registered.

    The memory belongs to the group, so do not use the tensor after the group's end. The memory is
    freed together with the tensor's storage. `dtype` None is torch's default type.
    """
    kind = torch.get_default_dtype() if dtype is None else dtype
    count = math.prod(shape)
    if any(size < 0 for size in shape):
        raise UsageError(f"a shape's sizes must be at least 0, not {shape}")
    if count == 0:
        return torch.empty(shape, dtype=kind, device="cpu")
    nic = group_of(group)
    nbytes = count * kind.itemsize
    address = nic.allocate(nbytes)
    # The storage keeps `memory` alive; when both are gone, nothing can reach the address.
    memory = (ctypes.c_char * nbytes).from_address(address)
    weakref.finalize(memory, nic.free, address).atexit = False
    return torch.frombuffer(memory, dtype=kind).view(shape)


def zeros(
    *shape: int, dtype: torch.dtype | None = None, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """Return a CPU tensor of zeros in registered memory; the arguments are those of `empty`."""
    return empty(*shape, dtype=dtype, group=group).zero_()


def counters(group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """Return the engine's counters of a group by name; None means the default group."""
    return dict(group_of(group).counters())
