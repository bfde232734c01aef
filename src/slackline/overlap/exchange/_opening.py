"""The choice of the transport for a model's gradients: the NIC engine or a torch process group."""

from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from torch import nn

from slackline.errors import UsageError
from slackline.overlap.exchange._interface import Exchange, NicExchange
from slackline.overlap.exchange._narrow import check_ranks
from slackline.overlap.exchange._nodes import NodeExchange
from slackline.overlap.exchange._process_group import ProcessGroupExchange

if TYPE_CHECKING:
    from slackline.nic import Group
    from slackline.plan.collective import Runs

__all__ = ["open_exchange"]


def open_exchange(
    module: nn.Module,
    group: "dist.ProcessGroup | Group | None",
    *,
    spare_keys: int,
    communicate: torch.dtype | None = None,
    virtual_ranks: int | None = None,
) -> Exchange:
    """Return the exchange that reduces a module's gradients over the ranks.

    The engine itself serves a model with a slackline group: in the CPU's memory, or by copies to
    and from a CUDA device. A group of another backend reduces gradients on their own device. The
    exchange has a key for each parameter and `spare_keys` further keys. `communicate` is the type
    in which fp32 gradients travel; None is their own. With `virtual_ranks` the gradients of so many
    virtual ranks are added in a fixed tree. Raises UsageError without a process group, and with
    `communicate` or `virtual_ranks` for a group of another backend.
    """
    devices = {parameter.device for parameter in module.parameters()}
    device = devices.pop() if devices else torch.device("cpu")
    keys = sum(1 for _ in module.parameters()) + spare_keys
    if group is None:
        group = dist.group.WORLD
    if isinstance(group, dist.ProcessGroup):
        backend = dist.get_backend(group)
        check_ranks(communicate, group.size())
        if communicate is not None and backend != "slackline":
            raise UsageError(
                f"communicate={communicate} must be used with the backend 'slackline', not "
                f"{backend!r}, which does not sum that type in fp32 in the order of the ranks"
            )
        if virtual_ranks is not None and backend != "slackline":
            raise UsageError(
                f"virtual_ranks={virtual_ranks} needs the backend 'slackline', not {backend!r}"
            )
        if backend != "slackline":
            return ProcessGroupExchange(group, device)
        if device.type != "cpu":
            return _staged(group, device, keys, communicate, virtual_ranks)
        from slackline.backend import group_of  # imported late: only this case needs the engine

        nic_group, name = group_of(group), group.group_name
        if virtual_ranks is not None:
            return _of_nodes(nic_group, keys, name, virtual_ranks)
        return NicExchange(nic_group, keys, name, communicate=communicate)
    if group is None:
        raise UsageError("there is no default process group; call init_process_group first")
    check_ranks(communicate, group.size)
    if virtual_ranks is not None:
        return _of_nodes(group, keys, "", virtual_ranks)
    return NicExchange(group, keys, communicate=communicate)


def _of_nodes(group: "Group", keys: int, name: str, virtual_ranks: int) -> Exchange:
    """Return the exchange of a group whose ranks have equal runs of virtual ranks."""
    return NodeExchange(group, keys, name, _runs(group, virtual_ranks))


def _runs(group: "Group", virtual_ranks: int) -> "Runs":
    """Return equal runs of virtual ranks; raise UsageError if there are fewer than ranks."""
    from slackline.plan.collective import even_runs  # Most models have no such ranks.

    if virtual_ranks < group.size:
        raise UsageError(
            f"virtual_ranks must be at least the number of ranks ({group.size}), "
            f"not {virtual_ranks}",
            rank=group.rank,
        )
    return even_runs(virtual_ranks, group.size)


def _staged(
    group: dist.ProcessGroup,
    device: torch.device,
    keys: int,
    communicate: torch.dtype | None,
    virtual_ranks: int | None,
) -> Exchange:
    """Return the exchange of gradients on a device whose tensors are staged."""
    # Here and not above: only this case needs the engine, and copies.
    from slackline.backend import SlacklineGroup

    assert isinstance(group, SlacklineGroup)
    stages, staging = group.staging_device(device), group.staging()
    assert stages is not None  # the tensors are not in the CPU's memory
    if virtual_ranks is not None:
        from slackline.overlap.exchange._staged_nodes import StagedNodeExchange

        runs = _runs(group.nic, virtual_ranks)
        return StagedNodeExchange(
            group.nic, keys, group.group_name, runs, device=stages, staging=staging
        )
    from slackline.overlap.exchange._staged import StagedExchange

    return StagedExchange(
        group.nic,
        keys,
        group.group_name,
        device=stages,
        staging=staging,
        communicate=communicate,
    )
