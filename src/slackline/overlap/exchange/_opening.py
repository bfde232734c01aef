"""The choice of the transport for a model's gradients: the NIC engine or a torch process group."""

from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from torch import nn

from slackline.errors import UsageError
from slackline.overlap.exchange._interface import Exchange, NicExchange
from slackline.overlap.exchange._process_group import ProcessGroupExchange

if TYPE_CHECKING:
    from slackline.nic import Group

__all__ = ["open_exchange"]


def open_exchange(
    module: nn.Module, group: "dist.ProcessGroup | Group | None", *, spare_keys: int
) -> Exchange:
    """Return the exchange that reduces a module's gradients over the ranks.

    The engine itself serves a model in the CPU's memory with a slackline group. Every other case
    uses the torch process group, which reduces gradients on their own device. The exchange has a
    key for each parameter and `spare_keys` further keys. Raises UsageError without a process group.
    """
    devices = {parameter.device for parameter in module.parameters()}
    device = devices.pop() if devices else torch.device("cpu")
    keys = sum(1 for _ in module.parameters()) + spare_keys
    if group is None:
        group = dist.group.WORLD
    if isinstance(group, dist.ProcessGroup):
        if device.type != "cpu" or dist.get_backend(group) != "slackline":
            return ProcessGroupExchange(group, device)
        from slackline.backend import group_of  # imported late: only this case needs the engine

        return NicExchange(group_of(group), keys, group.group_name)
    if group is None:
        raise UsageError("there is no default process group; call init_process_group first")
    return NicExchange(group, keys)
