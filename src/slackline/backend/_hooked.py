"""torch's hooks of operations, which call a program or torch's flight recorder for each operation.

    group.broadcast ─┬─ no hook ──────────────────────────────────────────────── engine
                     └─ DispatcherView.broadcast ─ c10d::broadcast_ ─ torch's kernel
                          ─ pre-hooks ─ BackendBelow.broadcast ─ engine ─ post-hooks

torch (2.14 and later) keeps a group's hooks in C++, where only its own kernels can call them. So
the operations of a group with hooks pass through these kernels, which call a backend that is
registered in the group; those of other groups do not. Operations on plain tensors leave out the
view and the operator's kernel in Python, which take most of the time.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

from slackline.backend._dispatched import OPERATIONS, pass_through
from slackline.backend._identity import NAME
from slackline.backend._torch import c10d, excluded_from_compile, held
from slackline.backend.operations import Call, in_dispatcher
from slackline.backend.staging import NeedsDispatcher, is_plain
from slackline.errors import UsageError

__all__ = ["HOOKS", "Hooks", "kind_of", "watch_attachments"]

HOOKS = hasattr(dist.ProcessGroup, "register_pre_hook")
"""Whether torch has hooks of operations; such a torch has a Backend that Python can derive from."""
_ATTACHED = ("FlightRecorderHook", "NanCheckHook")
"""The classes whose `attach` gives a group hooks in C++, unseen by Python."""
_CUSTOM = dist.ProcessGroup.BackendType.CUSTOM
_SELECT = torch._C.DispatchKeySet(torch._C.DispatchKey.BackendSelect)
"""The dispatch key of slackline's kernels in Python."""
_active_modes = torch._C._len_torch_dispatch_stack
_included = torch._C._dispatch_tls_local_include_set
_excluded = torch._C._dispatch_tls_local_exclude_set
_lock = threading.Lock()
_HOOKED: dict[type[Any], type[Any]] = {}
"""The classes of groups with hooks, by the classes of the groups without."""

if TYPE_CHECKING:

    class _Backend:
        """torch's Backend as a base class for type checking."""

        def __init__(self, rank: int, size: int) -> None: ...

else:
    _Backend = c10d.Backend


@excluded_from_compile
class BackendBelow(_Backend):
    """The backend that torch's kernels find in a group with hooks: the group's operations."""

    def __init__(self, owner: Any) -> None:
        super().__init__(owner.rank(), owner.size())
        self._owner = weakref.ref(owner)
        self._kind = type(owner)

    def getBackendName(self) -> str:  # noqa: N802
        return NAME

    def name(self) -> str:
        return NAME


class _Direct(threading.local):
    """The calling thread's operations that torch's kernels have without the dispatcher's view."""

    def __init__(self) -> None:
        self.states: list[tuple[Any, Any] | None] = []
        """The dispatch keys that the caller includes and excludes, innermost last; None while the
        operation itself runs, which torch's kernel has given back."""

    def entered(self) -> bool:
        """Return whether torch has an operation that it has not given back."""
        return bool(self.states) and self.states[-1] is not None

    @contextmanager
    def left(self) -> Iterator[None]:
        """Run what torch's kernel has given back, with the dispatch keys of the caller."""
        state: Any = self.states[-1]
        self.states.append(None)
        try:
            with torch._C._ForceDispatchKeyGuard(*state):
                yield
        finally:
            self.states.pop()


_direct = _Direct()


def _posted(name: str) -> Callable[..., Any]:
    """Return the method of BackendBelow that calls the owner's operation, without its hooks."""

    def post(self: Any, *args: Any) -> Any:
        if _direct.entered():
            with _direct.left():
                work = getattr(self._kind, name)(self._owner(), *args)
            in_dispatcher.calls[-1].works.append(work)
            return work
        work = getattr(self._kind, name)(self._owner(), *args)
        if in_dispatcher.calls:
            in_dispatcher.calls[-1].works.append(work)
        return held(work)

    return post


for _name in OPERATIONS:
    setattr(BackendBelow, _name, _posted(_name))
setattr(BackendBelow, "allreduce_sparse", _posted("allreduce"))  # noqa: B010
excluded_from_compile(BackendBelow)


class Hooks:
    """A mixin for process groups: the registration of hooks, in a torch that has them."""

    hooked = False
    """Whether the group's operations pass through torch's kernels, which call the hooks."""
    _below: BackendBelow | None = None

    def pass_hooks(self) -> None:
        """Have torch's kernels call the group's hooks in its operations from now on."""
        with _lock:
            if self.hooked:
                return
            if self._below is None:
                self._register_below()
            # The class is replaced, so that groups without hooks need not ask for them.
            kind = type(self)
            self.__class__ = _HOOKED.get(kind) or _HOOKED.setdefault(kind, _hooked(kind))

    def _register_below(self) -> None:
        group: Any = self
        self._below = BackendBelow(group)
        for device in group._device_types:
            found = group._get_backend(device)
            own = found is group
            kind = _CUSTOM if own else kind_of(found)
            backend: Any = self._below if own else found
            # torch's methods, which slackline's groups refuse to a program.
            dist.ProcessGroup._register_backend(group, device, kind, backend)
            dist.ProcessGroup._set_default_backend(group, kind)


def kind_of(backend: Any) -> Any:
    """Return torch's BackendType of one of its own backends."""
    return dist.Backend.backend_type_map.get(backend.name(), _CUSTOM)


def _hooked(kind: type[Any]) -> type[Any]:
    """Return a class of groups whose operations pass through torch's kernels, to the hooks."""
    methods = {name: _passed(name, getattr(kind, name)) for name in OPERATIONS}
    found: type[Any] = type(
        kind.__name__, (kind,), {"__module__": kind.__module__, "hooked": True, **methods}
    )
    return excluded_from_compile(found)


def _passed(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method that calls torch's own of the same name, which calls torch's kernel."""
    torchs = getattr(dist.ProcessGroup, name)

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> dist.Work:
        if _direct.entered():  # C++ calls some operations by another name
            with _direct.left():
                work = pass_through(self, name, args, kwargs)
            in_dispatcher.calls[-1].works.append(work)
            return held(work)
        plain = _are_plain(args) and _are_plain(kwargs.values())
        if _active_modes() or not plain or name == "barrier":  # which makes tensors in C++
            return pass_through(self, name, args, kwargs)
        if name in {"send", "recv"} and len(args) < 3 and "tag" not in kwargs:
            args = (*args, 0)  # torch's own methods have no default.
        posted = Call()
        in_dispatcher.calls.append(posted)
        in_dispatcher.kernels += 1
        _direct.states.append((_included(), _excluded()))
        try:
            with torch._C._ExcludeDispatchKeyGuard(_SELECT):
                result: dist.Work = torchs(self, *args, **kwargs)
        finally:
            _direct.states.pop()
            in_dispatcher.kernels -= 1
            in_dispatcher.calls.pop()
        return posted.works[0] if posted.works else result

    # torch calls its own method, and not this one again, from a method of the same name.
    function: Any = call
    function.__code__ = function.__code__.replace(co_name=name)
    return call


def _are_plain(values: Iterable[Any]) -> bool:
    """Return whether all tensors, in lists too, have memory that the engine can use or copy."""
    for value in values:
        if isinstance(value, torch.Tensor):
            try:
                is_plain(value)
            except (NeedsDispatcher, UsageError):
                return False
        elif isinstance(value, (list, tuple)) and not _are_plain(value):
            return False
    return True


def _registering(name: str) -> Callable[..., None]:
    """Return the method that registers a hook, with torch's own method of this name."""
    register = getattr(dist.ProcessGroup, name)

    @wraps(register)
    def registering(self: Any, hook_id: int, hook: Any) -> None:
        self.pass_hooks()
        register(self, hook_id, hook)

    return registering


if HOOKS:
    for _name in ("register_pre_hook", "register_post_hook"):
        setattr(Hooks, _name, _registering(_name))


def watch_attachments() -> None:
    """Note the groups to which torch attaches hooks in C++; a second call changes nothing."""
    with _lock:
        for name in _ATTACHED:
            kind = getattr(c10d, name, None)
            if kind is None or hasattr(kind.attach, "__wrapped__"):
                continue
            kind.attach = staticmethod(_attaching(kind.attach))


def _attaching(attach: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(attach)
    def attaching(pg: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(pg, Hooks):
            pg.pass_hooks()
        return attach(pg, *args, **kwargs)

    return attaching
