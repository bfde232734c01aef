"""The properties that torch asks of a process group: names, devices, abilities."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

import torch

from slackline.backend._torch import (
    GroupOptions,
    Store,
    TorchGroup,
    backend_options,
    c10d,
    excluded_from_compile,
    time_limit,
)
from slackline.errors import UsageError

__all__ = ["NAME", "Identity"]

NAME = "slackline"
_REFUSED = {
    "allocate_tensor": "call slackline.backend.empty for a tensor in registered memory",
    "mem_allocator": "call slackline.backend.empty for a tensor in registered memory",
    "memory_stats": "call slackline.backend.counters, which tells the registered memory",
    "suspend": "call destroy_process_group, which frees the engine's memory",
    "resume": "call init_process_group again",
    "shrink": "call slackline.elastic.shrink, which makes the default group smaller",
    "_register_backend": 'name both backends, as in init_process_group("cpu:slackline,cuda:nccl")',
    "_set_default_backend": "a slackline group is its own backend",
    "get_reconfigure_handle": "call slackline.elastic.get_handle, or give init_process_group "
    "enable_reconfigure=True",
    "reconfigure": "call slackline.elastic.reconfigure, or give init_process_group "
    "enable_reconfigure=True",
    "new_window": "call send and recv, since slackline has no one-sided operations",
    "register_abort_hook": "catch the error of the operation",
    "unregister_abort_hook": "catch the error of the operation",
    "merge": "call merge_remote_group",
    "split": "call torch.distributed.split_group",
    "_start_time_estimate": "measure the operations, for example with torch.profiler",
    "_end_time_estimate": "measure the operations, for example with torch.profiler",
    "_register_on_completion_hook": "add a callback to the Work's get_future()",
}
"""What torch asks of some backends and slackline has not, with the way out for the caller."""


@excluded_from_compile
class Identity(TorchGroup):
    """A ProcessGroup that is its own backend and stores its name and description.

    torch finds groups by name (functional collectives, DeviceMesh, FSDP2, destroy). torch calls the
    accessors by their Python and their C++ names, so the class has both spellings.
    """

    supports_splitting = True
    supports_coalescing = False
    supports_time_estimate = False
    _supports_time_estimate = False
    supports_shrinking = False  # torch.distributed.shrink_group takes backends in C++ only.
    use_pg_for_symm_mem_rendezvous = False

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._store = store
        self._name = ""
        self._desc = ""
        self._timeout: timedelta | None = None
        self._group_timeout = timeout

    def name(self) -> str:
        return NAME

    def getBackendName(self) -> str:  # noqa: N802
        return NAME

    def _get_backend_name(self) -> str:
        return NAME

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        return self._name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._desc

    def setGroupDesc(self, desc: str) -> None:  # noqa: N802
        self._desc = desc

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    @property
    def group_desc(self) -> str:
        return self._desc

    def get_group_store(self) -> Store:
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        # `is_available` would start the driver's runtime, after which a forked child cannot use it.
        kinds = ["cpu", "cuda"] if torch.cuda.device_count() else ["cpu"]
        return [torch.device(kind) for kind in kinds]

    def _get_backend(self, device: torch.device) -> Any:
        if torch.device(device).type not in ("cpu", "cuda"):
            raise UsageError(
                f"No backend type associated with device type {device}: slackline serves cpu and "
                "cuda; name another backend beside it, as in "
                f'init_process_group("cpu:slackline,{torch.device(device).type}:...")'
            )
        return self

    def get_backend(self, device: torch.device) -> Any:
        return self._get_backend(device)

    def _backend_id(self, backend_type: Any) -> int:
        return self._id()

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return False

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Do nothing, since the engine connects ranks by itself.

        The group's `bound_device_id` stays None: to torch 2.14 a bound default group is one to
        split, whose `split_from` takes no process group, so that `new_group` would fail.
        """
        self._get_backend(device)

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Do nothing, since only the members of a split make it."""

    def setUsePgForSymmMemRendezvous(self, value: bool) -> None:  # noqa: N802
        """Keep the answer no; raise UsageError if torch's symmetric memory is to use the group."""
        if value:
            raise UsageError(
                "slackline does not carry the handles of torch's symmetric memory: leave the "
                "exchange to the store, which is the default"
            )

    @property
    def options(self) -> GroupOptions:
        """The backend's options, from which torch reads the timeout."""
        return backend_options(NAME, self.default_timeout)

    @property
    def default_timeout(self) -> timedelta:
        """The timeout of operations whose call gives no timeout."""
        return self._timeout or self._group_timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later operations whose call gives no timeout.

        Raises UsageError unless the timeout is positive.
        """
        self._timeout = time_limit(timeout)

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.set_timeout(timeout)

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        """Do nothing, as torch allows; an operation has the timeout of its call or group."""

    def get_error(self) -> Any:
        """Return success, as torch's backends on CPUs do: operations raise their own errors."""
        return c10d.ErrorType.SUCCESS

    def _set_group_uid(self, uid: str) -> None:
        """Do nothing, since the group is known by its name."""

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        pass

    def _enable_collectives_timing(self) -> None:
        pass

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing, since the engine numbers the group's operations by itself."""


def _refusal(name: str, way_out: str) -> Callable[..., NoReturn]:
    def refuse(self: Identity, *args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError(f"a slackline group has no {name}: {way_out}")

    return refuse


for _name, _way_out in _REFUSED.items():
    _answer: Any = _refusal(_name, _way_out)
    setattr(Identity, _name, property(_answer) if _name == "mem_allocator" else _answer)

for _name in dir(TorchGroup):
    # torch's own attributes ask C++, which asks for the Python attribute of the same name.
    if _name.startswith("supports_") and _name not in vars(Identity):
        setattr(Identity, _name, False)
