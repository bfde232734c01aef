"""Has slackline serve the groups that a program asks of gloo; they keep gloo's name.

    init_process_group("gloo"), new_group, DeviceMesh
        -> _new_process_group_helper    torch's, within a note that gloo is asked for
            -> _register_backend        the other devices' backends, where there are any
            -> ProcessGroupGloo(...)    slackline's group; torch's class where there is no note

torch's own branch for gloo runs, and it registers the group under gloo's name
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
    """A group that is being made, whose CPU tensors are gloo's."""

    group_ranks: list[int]
    others: int
    """The number of devices that have another backend; torch makes theirs before gloo's."""
    registered: int = 0
    """The number of them that have their backend by now."""
    holder: Any = None
    """torch's group that has them."""


_ASKED: ContextVar[_Asked | None] = ContextVar("the group that is being made", default=None)


def serve_gloo() -> None:
    """Serve every group whose CPU tensors a program gives to gloo; a second call changes nothing.

    Raises UsageError where torch has no gloo, or not the functions that make its groups.
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
        """ProcessGroupGloo, or slackline's group where one is asked for."""

        torchs = c10d.ProcessGroupGloo

    class GlooLast(c10d.BackendConfig):  # type: ignore[misc]  # torch's, whatever it is
        """The backends of a group's devices, gloo after the others while a group is being made.

        torch takes the first ProcessGroup for the whole group and makes no further backend.
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
    """The type of a class that stands for ProcessGroupGloo and counts slackline's groups to it."""

    torchs: ClassVar[Any]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        asked = _ASKED.get()
        # Before the other devices have their backends, torch makes groups of gloo that help to
        # debug those (TORCH_DISTRIBUTED_DEBUG=DETAIL).
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
    """Return torch's maker of groups, which notes meanwhile where gloo is asked for CPUs."""
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
    """Return ProcessGroup's `_register_backend`, which notes the group that a backend goes to."""

    @wraps(register)
    def watching(group: Any, *args: Any, **kwargs: Any) -> Any:
        asked = _ASKED.get()
        if asked is not None:
            asked.holder = group
            asked.registered += 1
        return register(group, *args, **kwargs)

    return watching
