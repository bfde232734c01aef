"""The adapter to torch's untyped interfaces: names whose types torch's stubs lack or get wrong."""

from datetime import timedelta
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import distributed as dist
from torch._C import _distributed_c10d as c10d

__all__ = [
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
    "reduction_number",
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


def cloned_store(store: Store) -> Store:
    """Return a store with the same content on a connection of its own."""
    untyped: Any = store  # torch's stubs lack the method.
    clone: Store = untyped.clone()
    return clone


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
