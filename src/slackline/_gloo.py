"""The wrappers by which slackline serves groups that a program requests under gloo's name.

    init_process_group("gloo"), new_group, DeviceMesh
        -> _new_process_group_helper    torch's function, wrapped: notes a request for gloo
            -> _register_backend        the other devices' backends, where there are any
            -> ProcessGroupGloo(...)    slackline's group; without a request, torch's class

torch's own branch for gloo runs, and registers the group under gloo's name
(docs/decisions/0013-programs-that-name-gloo.md).
"""

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar

from slackline.errors import UsageError

__all__ = ["serve_gloo"]

NAME = "gloo"


@dataclass
class _Asked:
    """A request for a group: torch is creating the group, and its CPU tensors are to use gloo."""

    group_ranks: list[int]
    others: int
    """The number of devices with other backends, which torch creates before gloo's backend."""
    registered: int = 0
    """The number of other devices whose backend has been registered so far."""
    holder: Any = None
    """The process group of torch in which the other devices' backends are registered."""


_ASKED: ContextVar[_Asked | None] = ContextVar("the group that is being made", default=None)


def serve_gloo() -> None:
    """Wrap torch's functions so that slackline serves groups whose CPU tensors are to use gloo.

    A second call changes nothing. Raises UsageError where torch has no gloo, or lacks the functions
    that create its groups.
    """
    from torch.distributed import distributed_c10d

    c10d: Any = distributed_c10d
    if isinstance(getattr(c10d, "ProcessGroupGloo", None), _Instead):
        return
    names = ("ProcessGroupGloo", "_new_process_group_helper", "BackendConfig")
    missing = [name for name in names if not hasattr(c10d, name)]
    if missing:
        raise UsageError(f"slackline cannot serve gloo: this torch has no {', '.join(missing)}")

    class GlooInstead(metaclass=_Instead):
        """A stand-in for ProcessGroupGloo that creates slackline's group if one is requested."""

        torchs = c10d.ProcessGroupGloo

    class GlooLast(c10d.BackendConfig):  # type: ignore[misc]  # torch's class has no types
        """The backends of a group's devices, with gloo last while a group is being created.

        torch takes the first ProcessGroup for the whole group and creates no further backend, so
        the other devices' backends must come first.
        """

        def get_device_backend_map(self) -> dict[str, Any]:
            found: dict[str, Any] = super().get_device_backend_map()
            if _ASKED.get() is None:
                return found
            return dict(sorted(found.items(), key=lambda each: each[1] == NAME))

    c10d.ProcessGroupGloo = GlooInstead
    c10d.BackendConfig = GlooLast
    c10d._new_process_group_helper = _noting(c10d._new_process_group_helper, GlooLast)
    c10d.ProcessGroup._register_backend = _watching(c10d.ProcessGroup._register_backend)


class _Instead(type):
    """The metaclass of ProcessGroupGloo's stand-in: `isinstance` accepts slackline's groups too."""

    torchs: ClassVar[Any]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        asked = _ASKED.get()
        # With TORCH_DISTRIBUTED_DEBUG=DETAIL, torch creates gloo groups that help to debug the
        # other devices' backends before these are registered. Such groups must remain torch's.
        if asked is None or asked.registered < asked.others:
            return cls.torchs(*args, **kwargs)
        from slackline.backend import create_served

        return create_served(*args, ranks=asked.group_ranks, others=asked.holder, **kwargs)

    def __instancecheck__(cls, thing: Any) -> bool:
        from slackline.backend import SlacklineGroup

        return isinstance(thing, cls.torchs) or (
            isinstance(thing, SlacklineGroup) and thing.stands_for == NAME
        )

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls.torchs)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.torchs, name)


def _noting(make: Callable[..., Any], config: Callable[[Any], Any]) -> Callable[..., Any]:
    """Wrap torch's function that creates groups, to record requests for gloo on CPUs."""
    signature = inspect.signature(make)

    @wraps(make)
    def noting(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        backends = config(call.arguments["backend"]).get_device_backend_map()
        if backends.get("cpu") != NAME:
            return make(*args, **kwargs)
        others = sum(name != NAME for name in backends.values())
        token = _ASKED.set(_Asked(list(call.arguments["global_ranks_in_group"]), others))
        try:
            return make(*args, **kwargs)
        finally:
            _ASKED.reset(token)

    return noting


def _watching(register: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ProcessGroup's `_register_backend`, to record the group that receives the backends."""

    @wraps(register)
    def watching(group: Any, *args: Any, **kwargs: Any) -> Any:
        asked = _ASKED.get()
        if asked is not None:
            asked.holder = group
            asked.registered += 1
        return register(group, *args, **kwargs)

    return watching
