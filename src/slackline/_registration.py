"""The registration of the backend name "slackline" with torch; the backend loads at first use.

A group may have other backends for other devices. torch creates the backends of
`cpu:slackline,cuda:nccl` in this order, and takes the first one that is a ProcessGroup, as
slackline's is, for the whole group. So slackline's place is the last one, and its group passes
operations on other devices on to the backends that torch has created.
"""

import threading
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

from slackline.env import serves

__all__ = ["others_beside", "put_last", "register", "watch_groups"]


_WATCHES = "_slackline_watches"


class _Seen(threading.local):
    """The calling thread's latest process group in which torch has registered a backend."""

    def __init__(self) -> None:
        self.group: Callable[[], Any] = lambda: None


_seen = _Seen()


def put_last(name: str) -> None:
    """Have torch create the backend called `name` after a group's other backends."""
    from torch.distributed import distributed_c10d

    config: Any = distributed_c10d.BackendConfig
    of_devices = config.get_device_backend_map

    @wraps(of_devices)
    def ordered(self: Any) -> dict[str, Any]:
        return dict(sorted(of_devices(self).items(), key=lambda each: each[1] == name))

    config.get_device_backend_map = ordered


def watch_groups() -> None:
    """Note the process groups in which torch registers backends; a second call changes nothing."""
    from torch.distributed import distributed_c10d

    c10d: Any = distributed_c10d
    register = c10d.ProcessGroup._register_backend
    if hasattr(register, _WATCHES):
        return

    @wraps(register)
    def watching(group: Any, *args: Any, **kwargs: Any) -> Any:
        _seen.group = weakref.ref(group)
        return register(group, *args, **kwargs)

    setattr(watching, _WATCHES, True)
    c10d.ProcessGroup._register_backend = watching


def others_beside(options: Any) -> Any:
    """Return torch's process group with the backends of the other devices, or None without any.

    `options` are torch's _DistributedBackendOptions for the backend that torch creates last.
    """
    group = _seen.group()
    # torch gives the backend a prefix of the store of the group that it is creating.
    if group is None or group.get_group_store() is not options.store.underlying_store:
        return None
    return group


NAME = "slackline"
DEVICES = ["cpu", "cuda"]


def register() -> None:
    """Register the backend with torch.distributed; further calls change nothing.

    torch calls this function through slackline's entry points (`slackline_entry`). With
    SLACKLINE_AS, slackline also serves the groups of the backend named there
    (docs/decisions/0013-programs-that-name-gloo.md). Raises UsageError for a backend that slackline
    cannot serve.
    """
    from torch import distributed

    if not distributed.is_available():
        return
    if NAME not in distributed.Backend.backend_list:
        distributed.Backend.register_backend(NAME, _create, extended_api=True, devices=DEVICES)
        put_last(NAME)
        watch_groups()
    if serves() is not None:
        from slackline._gloo import serve_gloo

        serve_gloo()


def _create(options: Any, group_options: Any) -> Any:  # torch's types
    """Create a slackline process group from torch's options."""
    from slackline.backend import create

    others = others_beside(options)
    if others is None and getattr(options, "enable_reconfigure", False):
        from slackline.elastic import reconfigurable_group  # Torch asks for it since 2.14.

        return reconfigurable_group(options, group_options)
    if others is None:
        return create(options, group_options)
    from slackline.backend import create_beside  # Most groups have one backend.

    return create_beside(others, options, group_options)
