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
    "PrefixStore",
    "Store",
    "TorchGroup",
    "backend_options",
    "c10d",
    "cloned_store",
    "excluded_from_compile",
    "reduction_number",
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

else:
    TorchGroup = dist.ProcessGroup


def reduction_number(op: Any) -> int:
    """Return torch's number of a reduction; `op` is a ReduceOp or a member of its enum."""
    return hash(op)  # torch defines the hash as the number; this needs no conversion


def backend_options(name: str, timeout: timedelta) -> Any:
    """Return torch's options object of a backend, from which torch reads the timeout."""
    return c10d.Backend.Options(name, timeout)


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
