"""The adapter to torch: names without types in torch's stubs, held Works, and time limits.

A time limit of torch may be not set, longer than the engine can count, or not positive.
"""

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from slackline.errors import UsageError

__all__ = [
    "UNSET",
    "AllreduceOptions",
    "BackendOptions",
    "GroupOptions",
    "PrefixStore",
    "Store",
    "TorchGroup",
    "backend_options",
    "c10d",
    "cloned_store",
    "excluded_from_compile",
    "held",
    "reduction_number",
    "renumber",
    "serve_set_pg_timeout",
    "store_port",
    "time_limit",
    "wait_limit",
    "work_results",
]


_Kind = TypeVar("_Kind")

AllreduceOptions = c10d.AllreduceOptions
BackendOptions = c10d._DistributedBackendOptions
PrefixStore = c10d.PrefixStore
Store = c10d.Store

if TYPE_CHECKING:

    class TorchGroup:
        """torch's ProcessGroup as a base class for type checking, without its overloads.

        The constructor takes no store, since a subclass must not pass a store to torch.
        """

        def __init__(self, rank: int, size: int) -> None: ...
        def rank(self) -> int: ...
        def size(self) -> int: ...
        def _id(self) -> int: ...

else:
    TorchGroup = dist.ProcessGroup


def work_results() -> Any:
    """Return torch's enum of the results of a Work."""
    untyped: Any = c10d
    return untyped.WorkResult


def reduction_number(op: Any) -> int:
    """Return torch's number of a reduction; `op` is a ReduceOp or a member of its enum."""
    return hash(op)  # torch defines the hash as the number; this needs no conversion


class GroupOptions(c10d.Backend.Options):
    """torch's options of a group's backend, from which torch reads the timeout.

    torch copies the options before it splits a group.
    """

    def __deepcopy__(self, memo: Any) -> "GroupOptions":
        return backend_options(self.backend, self._timeout)


def backend_options(name: str, timeout: timedelta) -> GroupOptions:
    """Return torch's options object of a backend."""
    return GroupOptions(name, timeout)


def renumber(group: TorchGroup, size: int) -> None:
    """Tell torch that the default group, if `group` is it, has `size` ranks now."""
    default: Any = dist.group.WORLD
    if default is group:
        state: Any = distributed_c10d
        state._world.pg_group_ranks[group] = {rank: rank for rank in range(size)}


def cloned_store(store: Store) -> Store:
    """Return a store with the same content on a connection of its own."""
    untyped: Any = store  # torch's stubs lack the method.
    clone: Store = untyped.clone()
    return clone


def store_port(store: Store) -> int | None:
    """Return the port of the TCPStore that serves a store; None for another kind of store."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store.port if isinstance(store, c10d.TCPStore) else None


def excluded_from_compile(kind: type[_Kind]) -> type[_Kind]:
    """Exclude a class's methods and all their calls from torch.compile; return the class.

    torch's C++ may call the methods while dynamo looks for frames to compile, for example in
    DistributedDataParallel's broadcast of buffers. Dynamo fails on a process group as `self`.
    """
    frames: Any = torch._C._dynamo.eval_frame
    skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    for method in vars(kind).values():
        function: Any = method.fget if isinstance(method, property) else method
        if isinstance(function, FunctionType):
            frames.set_code_exec_strategy(function.__code__, skip)
    return kind


class _Carrier(TorchGroup):
    """A group that hands a Work to C++, so that C++ keeps the Work's Python object alive."""

    def __init__(self) -> None:
        super().__init__(0, 1)
        self.work: Any = None

    def broadcast(self, tensors: Any, opts: Any) -> Any:
        work, self.work = self.work, None
        return work


_carriers = threading.local()


def held(work: dist.Work) -> dist.Work:
    """Return a Work that follows `work` and keeps it alive as long as torch's C++ code holds it."""
    if not hasattr(_carriers, "carrier"):
        _carriers.carrier = _Carrier()
    _carriers.carrier.work = work
    # Python calls C++, and C++ calls the carrier: a Work comes back that holds a Python object.
    kept: dist.Work = dist.ProcessGroup.broadcast(_carriers.carrier, [], c10d.BroadcastOptions())
    return kept


UNSET = timedelta(milliseconds=-1)
"""The mark by which torch says that an operation has no timeout of its own."""
_LONGEST = timedelta(days=36_500)
"""The engine counts nanoseconds in 64 bits, and torch counts microseconds."""


def time_limit(timeout: timedelta) -> timedelta:
    """Return a timeout that the engine can count: `timeout`, or 100 years in place of a longer one.

    A float is a number of seconds, as it is in torch. Raises UsageError unless the timeout is
    positive.
    """
    if isinstance(timeout, float) and timeout > 0:
        return timedelta(seconds=min(timeout, _LONGEST.total_seconds()))
    if not isinstance(timeout, timedelta):
        raise UsageError(f"a timeout must be a positive datetime.timedelta, not {timeout!r}")
    if timeout <= timedelta():
        note = "; torch turns timedelta.max into this value: give 36,500 days"
        raise UsageError(
            f"a timeout must be positive, not {timeout}{note if timeout < -_LONGEST else ''}"
        )
    return min(timeout, _LONGEST)


def wait_limit(timeout: timedelta) -> timedelta | None:
    """Return the time limit of a wait; None, the operation's own limit, for torch's zero."""
    return None if not timeout or timeout == UNSET else time_limit(timeout)


def serve_set_pg_timeout() -> None:
    """Have torch's `_set_pg_timeout` set the timeout of slackline's groups.

    torch's function knows the classes of gloo and NCCL only: for all other groups it warns and does
    nothing. A second call changes nothing.
    """
    untyped: Any = distributed_c10d
    torchs = getattr(untyped, "_set_pg_timeout", None)
    if torchs is not None and torchs not in _served:
        untyped._set_pg_timeout = _with_groups(torchs)
        _served.append(untyped._set_pg_timeout)


_served: list[Callable[..., None]] = []
"""The function in torch's place, once it is there."""


def _with_groups(torchs: Callable[..., None]) -> Callable[..., None]:
    @wraps(torchs)
    def set_pg_timeout(timeout: timedelta, group: Any = None) -> None:
        known: Any = distributed_c10d.group.WORLD if group is None else group
        name = getattr(known, "stands_for", None)
        if name is not None and name == known.name():
            known.set_timeout(timeout)
        else:  # including slackline's groups that stand for gloo's
            torchs(timeout, group)

    return set_pg_timeout
