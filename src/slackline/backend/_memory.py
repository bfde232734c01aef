"""Tensors in memory that the engine has registered: on one host, peers read them in place."""

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
    """Return the nic's Group under a torch group of this backend; None means the default group.

    Raises UsageError for a group of another backend.
    """
    return slackline_group(process_group).nic


def slackline_group(process_group: dist.ProcessGroup | None) -> SlacklineGroup:
    """Return the group as this backend's own type, under the terms of `group_of`."""
    group = dist.group.WORLD if process_group is None else process_group
    if group is None:
        raise UsageError("there is no default process group; call init_process_group first")
    if not isinstance(group, SlacklineGroup):
        raise UsageError(f"the process group must be of backend slackline, not {group.name()}")
    return group


def empty(
    *shape: int, dtype: torch.dtype | None = None, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """Return an uninitialised CPU tensor in registered memory, which is given back when its storage
    dies.

    `dtype` None is torch's default. The memory is the group's: the tensor must not outlive it in
    use.
    """
    kind = torch.get_default_dtype() if dtype is None else dtype
    count = math.prod(shape)
    if any(size < 0 for size in shape):
        raise UsageError(f"a shape must not be negative, not {shape}")
    if count == 0:
        return torch.empty(shape, dtype=kind)
    nic = group_of(group)
    nbytes = count * kind.itemsize
    address = nic.allocate(nbytes)
    # The tensor's storage holds `memory`; when it dies, nothing can reach the address any more.
    memory = (ctypes.c_char * nbytes).from_address(address)
    weakref.finalize(memory, nic.free, address).atexit = False
    return torch.frombuffer(memory, dtype=kind).view(shape)


def zeros(
    *shape: int, dtype: torch.dtype | None = None, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """As `empty`, filled with zeros."""
    return empty(*shape, dtype=dtype, group=group).zero_()


def counters(group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """Return what the engine has counted for the group, by name."""
    return dict(group_of(group).counters())
