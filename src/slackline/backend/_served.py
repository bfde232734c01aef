"""Groups that torch knows under another backend's name, alone or beside other backends."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial, wraps
from typing import Any, NoReturn

import torch
from torch import distributed as dist

from slackline.backend._context import create
from slackline.backend._group import SlacklineGroup
from slackline.backend._hooked import kind_of
from slackline.backend._torch import BackendOptions, Store, excluded_from_compile
from slackline.errors import UsageError
from slackline.nic import Group, NicOptions

__all__ = ["MixedGroup", "ServedGroup", "ServedMixedGroup", "create_beside", "create_served"]

_OPERATIONS = (
    *("allreduce", "allreduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_single"),
    *("_reduce_scatter_base", "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"),
    *("broadcast", "allgather", "allgather_coalesced", "all_gather_single", "_allgather_base"),
    *("all_gather_single_coalesced", "allgather_into_tensor_coalesced", "gather", "scatter"),
    *("alltoall", "all_to_all_single", "alltoall_base", "barrier", "send", "recv"),
    *("recv_anysource", "_start_coalescing", "_end_coalescing"),
)


@excluded_from_compile
class ServedGroup(SlacklineGroup):
    """A slackline group in place of a group that the program has requested from gloo.

    torch knows the group by the name gloo.
    """

    stands_for = "gloo"


class MixedGroup(SlacklineGroup):
    """A group that uses slackline on some devices and other torch backends on others.

    An example is `cpu:slackline,cuda:nccl`. The device of an operation's first tensor, or the
    device argument of an operation without tensors, selects the backend. `others` is torch's
    process group with the other backends.
    """

    def __init__(self, nic: Group, store: Store, on_end: Callable[[], None], others: Any) -> None:
        super().__init__(nic, store, on_end)
        self._others = others
        for device in others._device_types[:1]:
            # torch's default would be slackline's backend, which is not among the others.
            others._set_default_backend(kind_of(others._get_backend(device)))
        self._elsewhere = frozenset(device.type for device in others._device_types)

    @property
    def _device_types(self) -> list[torch.device]:
        mine = [each for each in super()._device_types if each.type not in self._elsewhere]
        return mine + list(self._others._device_types)

    def _get_backend(self, device: torch.device) -> Any:
        if torch.device(device).type in self._elsewhere:
            return self._others._get_backend(device)
        return super()._get_backend(device)

    def _set_group_name(self, name: str) -> None:
        super()._set_group_name(name)
        self._others._set_group_name(name)

    def _set_group_desc(self, desc: str) -> None:
        super()._set_group_desc(desc)
        self._others._set_group_desc(desc)

    def set_timeout(self, timeout: timedelta) -> None:
        super().set_timeout(timeout)
        self._others.set_timeout(timeout)

    def _set_default_timeout(self, timeout: timedelta) -> None:
        super().set_timeout(timeout)  # torch calls each other backend itself

    def split_group(self, ranks: Sequence[int], *args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError(
            f"a group with several backends ({', '.join(map(str, self._device_types))}) cannot be "
            f"split: call torch.distributed.new_group({list(ranks)})"
        )

    def merge_remote_group(self, store: Store, size: int, *args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError(
            f"a group with several backends ({', '.join(map(str, self._device_types))}) cannot be "
            f"merged: call init_process_group with the store and world_size={size}"
        )

    def _has_hooks(self) -> bool:
        return bool(self._others._has_hooks())

    def _wait_for_pending_works(self) -> None:
        self._others._wait_for_pending_works()

    def _enable_collectives_timing(self) -> None:
        self._others._enable_collectives_timing()

    def shutdown(self) -> None:
        ended = self._ended
        try:
            super().shutdown()
        finally:
            if not ended:
                self._others.shutdown()

    def abort(self) -> None:
        ended = self._ended
        try:
            super().abort()
        finally:
            if not ended:
                self._others.abort()

    def _goes_elsewhere(self, given: object) -> bool | None:
        """Return whether an operation with this argument belongs to another backend.

        The result is None if the argument has neither a tensor nor a device.
        """
        if isinstance(given, torch.Tensor | torch.device):
            device = given.device if isinstance(given, torch.Tensor) else given
            return device.type in self._elsewhere
        if isinstance(given, Sequence) and not isinstance(given, str):
            answers = (self._goes_elsewhere(each) for each in given)
        else:
            answers = (
                self._goes_elsewhere(each) for each in [getattr(given, "device", None)] if each
            )
        return next((answer for answer in answers if answer is not None), None)


def _routed(name: str) -> Callable[..., Any]:
    """Return the method called `name`, which selects the backend by its arguments' device."""
    ours = getattr(SlacklineGroup, name)

    @wraps(ours)
    def operation(self: MixedGroup, *args: Any, **kwargs: Any) -> Any:
        if self._goes_elsewhere([*args, *kwargs.values()]):
            return getattr(self._others, name)(*args, **kwargs)
        return ours(self, *args, **kwargs)

    return operation


for _name in _OPERATIONS:
    setattr(MixedGroup, _name, _routed(_name))
excluded_from_compile(MixedGroup)


class ServedMixedGroup(MixedGroup, ServedGroup):
    """A MixedGroup in place of gloo beside other backends, such as `cpu:gloo,cuda:nccl`."""


def create_beside(
    others: dist.ProcessGroup, options: BackendOptions, group_options: object
) -> SlacklineGroup:
    """Create a group that leaves the devices of `others`' backends to these backends.

    `options` are torch's, `group_options` the user's for all backends of the group: slackline reads
    them only if they are its own. Blocks until all ranks have joined the group, or raises
    TimeoutError.
    """
    own = group_options if isinstance(group_options, NicOptions) else None
    return create(options, own, make=partial(MixedGroup, others=others))


def create_served(
    store: Store,
    rank: int,
    size: int,
    timeout: timedelta,
    *,
    ranks: Sequence[int],
    others: dist.ProcessGroup | None,
    enable_reconfigure: bool = False,
) -> SlacklineGroup:
    """Create a group in place of a gloo group, from the arguments of torch's ProcessGroupGloo.

    `ranks` are the members' ranks in the default group, and empty for the default group itself.
    `others` is a process group with the backends of other devices, or None. Blocks until all ranks
    have joined the group, or raises TimeoutError. Raises UsageError if `enable_reconfigure` is set.
    """
    options = BackendOptions()
    if enable_reconfigure:
        options.enable_reconfigure = True  # type: ignore[attr-defined]  # `create` refuses it.
    options.store = store
    options.group_rank = rank
    options.group_size = size
    options.timeout = timeout
    options.global_ranks_in_group = list(ranks)
    make = ServedGroup if others is None else partial(ServedMixedGroup, others=others)
    return create(options, make=make)
