"""Operations that pass through torch's dispatcher, as operators `c10d::*`, on their way to the NIC.

    SlacklineGroup.broadcast ─┬─ a tensor with memory of its own ─────────────────────────── engine
                              └─ a wrapper, or an active dispatch mode
                                   DispatcherView.broadcast ─ c10d::broadcast_
                                     ─ modes, subclasses, torch.func ─ kernel ─ broadcast ─ engine

torch's operators for process groups end at a C++ backend, which slackline has not. Kernels in
Python, for the dispatch key BackendSelect, come before torch's own kernels and after all modes and
wrappers. Operators that compiled code calls with a slackline group end here too. Groups of other
backends go on to torch's own kernels, without the GIL.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial, wraps
from typing import Any, TypeVar

import torch
from torch import distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from slackline.backend._identity import Identity
from slackline.backend._torch import TorchGroup, c10d
from slackline.backend.operations import Call, CoalescedWork, TransferWork, current
from slackline.errors import SlacklineError, UsageError
from slackline.staging import NeedsDispatcher

__all__ = ["DispatcherView", "dispatched", "serve_operators", "through_dispatcher"]

_Kind = TypeVar("_Kind")
_functorch = torch._C._functorch

_METHODS = [
    "allreduce_coalesced",
    "reduce",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single_coalesced",
    "broadcast",
    "allgather",
    "allgather_coalesced",
    "_allgather_base",
    "all_gather_single",
    "allgather_into_tensor_coalesced",
    "all_gather_single_coalesced",
    "gather",
    "scatter",
    "alltoall",
    "alltoall_base",
    "all_to_all_single",
    "send",
    "recv",
    "recv_anysource",
    "barrier",
]


class DispatcherView(Identity):
    """A ProcessGroup whose operations are torch's own, which call the dispatcher.

    torch's tools see this group in place of `owner`, with the owner's name.
    """

    def __init__(self, owner: Any) -> None:
        super().__init__(owner.get_group_store(), owner.rank(), owner.size(), owner.default_timeout)
        self.owner = owner
        self._set_group_name(owner.group_name)
        self._set_group_desc(owner.group_desc)


def dispatched(kind: type[_Kind]) -> type[_Kind]:
    """Have the operations of a process group's class call the dispatcher where they must.

    A method that raises NeedsDispatcher, before it has posted anything, is called again as torch's
    own method of a DispatcherView.
    """
    for name in _METHODS:
        setattr(kind, name, _with_dispatcher(name, getattr(kind, name)))
    return kind  # `allreduce`, the most frequent, calls `through_dispatcher` itself.


def _with_dispatcher(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except NeedsDispatcher:
            pass
        return through_dispatcher(self, name, args, kwargs)

    return call


def through_dispatcher(
    group: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dist.Work:
    """Call an operation of a SlacklineGroup by the operator of torch's dispatcher.

    Raises UsageError if the dispatcher has passed the arguments on already, or cannot.
    """
    args = _awaited(args)
    if name in {"send", "recv"} and len(args) < 3 and "tag" not in kwargs:
        args = (*args, 0)  # torch's own methods have no default.
    kwargs = {key: _awaited(value) for key, value in kwargs.items()}
    kinds = ", ".join(_kinds_of([*args, *kwargs.values()]))
    if current.kernels:
        raise UsageError(f"{name} of {kinds}: torch's dispatcher passes on what only it can read")
    call = Call(_reduction_of([*args, *kwargs.values()]))
    current.calls.append(call)
    try:
        result: dist.Work = getattr(group.dispatcher_view(), name)(*args, **kwargs)
    except (NotImplementedError, RuntimeError, TypeError) as error:
        if isinstance(error, SlacklineError):
            raise
        raise UsageError(
            f"torch passes no {name} of {kinds} to a process group: {error}"
        ) from error
    finally:
        current.calls.pop()
    if not call.works:
        return result  # A mode has answered, such as one that only traces.
    if len(call.works) == 1:
        return call.works[0]
    return CoalescedWork([work for work in call.works if isinstance(work, TransferWork)])


def _awaited(value: Any) -> Any:
    """Wait for the results of functional collectives in lists of arguments; return them plain."""
    if isinstance(value, AsyncCollectiveTensor):
        return value.trigger_wait()  # type: ignore[no-untyped-call]
    if isinstance(value, (list, tuple)):
        return type(value)(map(_awaited, value))
    return value


def _reduction_of(values: Sequence[Any]) -> Any:
    """Return the reduction among an operation's arguments; None if there is none."""
    for value in values:
        if isinstance(value, (dist.ReduceOp, dist.ReduceOp.RedOpType)):
            return value
        if hasattr(value, "reduceOp"):
            return value.reduceOp
    return None


def _kinds_of(values: Sequence[Any]) -> Iterator[str]:
    """Yield the names of the tensors' types, in arguments and in lists of arguments."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield type(value).__name__
        elif isinstance(value, (list, tuple)):
            yield from _kinds_of(value)


class _Carrier(TorchGroup):
    """A group that hands a Work to C++, so that C++ keeps the Work's Python object alive."""

    def __init__(self) -> None:
        super().__init__(0, 1)
        self.work: Any = None

    def broadcast(self, tensors: Any, opts: Any) -> Any:
        work, self.work = self.work, None
        return work


_carriers = threading.local()


def _held(work: dist.Work) -> dist.Work:
    """Return a Work that follows `work` and keeps it alive as long as torch's C++ code holds it."""
    if not hasattr(_carriers, "carrier"):
        _carriers.carrier = _Carrier()
    _carriers.carrier.work = work
    # Python calls C++, and C++ calls the carrier: a Work comes back that holds a Python object.
    held: dist.Work = dist.ProcessGroup.broadcast(_carriers.carrier, [], c10d.BroadcastOptions())
    return held


def serve_operators() -> None:
    """Have torch's operators for process groups serve slackline's groups."""
    with _lock:
        if _served:
            return
        for space, kernels in _KERNELS.items():
            library: Any = torch.library.Library(space, "IMPL")  # type: ignore[no-untyped-call]
            for name, (serve, kernel) in kernels.items():
                operator = getattr(getattr(torch.ops, space), name).default
                library.impl(
                    name, partial(serve, kernel, operator), "BackendSelect", with_keyset=True
                )
            _served.append(library)


_lock = threading.Lock()
_served: list[Any] = []
"""The libraries of kernels, which last as long as they are referred to."""
_BELOW = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
"""The dispatch keys of the kernels that come after slackline's."""
_META = torch._C.DispatchKey.Meta
"""The dispatch key of tensors without memory, by which torch learns the shapes of results."""


def _serve(kernel: Callable[..., Any], operator: Any, keys: Any, *args: Any, **kwargs: Any) -> Any:
    place = next(at for at, value in enumerate(args) if _is_group(value))
    group: Any = dist.ProcessGroup.unbox(args[place])
    owner = getattr(group, "owner", group)
    if keys.has(_META) or not hasattr(owner, "dispatcher_view"):
        return operator.redispatch(keys & _BELOW, *args, **kwargs)
    current.kernels += 1
    try:
        given = map(_unwrapped, (*args[:place], *args[place + 1 :]))
        return kernel(owner, *given, **kwargs)
    finally:
        current.kernels -= 1


def _unwrapped(value: Any) -> Any:
    """Return the values of torch.func's gradients in lists of lists, where torch leaves them."""
    while isinstance(value, torch.Tensor) and _functorch.is_gradtrackingtensor(value):
        value = _functorch.get_unwrapped(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_unwrapped, value))
    return value


def _serve_named(
    kernel: Callable[..., Any], operator: Any, keys: Any, *args: Any, **kwargs: Any
) -> Any:
    """Call the kernel of an operator that names its group in its last argument."""
    *given, name = args
    group: Any = c10d._resolve_process_group(name)
    if keys.has(_META) or not hasattr(group, "dispatcher_view"):
        return operator.redispatch(keys & _BELOW, *args, **kwargs)
    return kernel(group, *given, **kwargs)


def _is_group(value: Any) -> bool:
    return isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type())


def _done(work: dist.Work, *results: Any) -> Any:
    if current.calls:
        current.calls[-1].works.append(work)
    handed = _held(work).boxed()
    return (*results, handed) if results else handed


def _options(kind: Any, async_op: bool, timeout: int, **fields: Any) -> Any:
    options = kind()
    options.asyncOp = async_op
    if timeout >= 0:
        options.timeout = timedelta(milliseconds=timeout)
    for name, value in fields.items():
        setattr(options, name, value)
    return options


def _reduction(op: Any) -> Any:
    """Return the dist.ReduceOp of an operator's argument.

    The argument tells no factor of PREMUL_SUM, so the caller's own reduction is taken if it is of
    the same kind.
    """
    kind = dist.ReduceOp.RedOpType(op.op())
    given = current.calls[-1].reduction if current.calls else None
    return kind if given is None or given != kind else given


def _allreduce(
    group: Any, tensors: Any, op: Any, sparse: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    opts = _options(c10d.AllreduceOptions, async_op, timeout, reduceOp=_reduction(op))
    return _done(group.allreduce(tensors, opts), tensors)


def _allreduce_coalesced(
    group: Any, tensors: Any, op: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    kind = c10d.AllreduceCoalescedOptions
    opts = _options(kind, async_op, timeout, reduceOp=_reduction(op))
    return _done(group.allreduce_coalesced(tensors, opts))


def _reduce(
    group: Any,
    tensors: Any,
    op: Any,
    root: int,
    root_tensor: int,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    opts = _options(c10d.ReduceOptions, async_op, timeout, reduceOp=_reduction(op), rootRank=root)
    return _done(group.reduce(tensors, opts))


def _reduce_scatter(
    group: Any, outputs: Any, inputs: Any, op: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    opts = _options(c10d.ReduceScatterOptions, async_op, timeout, reduceOp=_reduction(op))
    return _done(group.reduce_scatter(outputs, inputs, opts), outputs)


def _reduce_scatter_base(
    group: Any, output: Any, source: Any, op: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    opts = _options(c10d.ReduceScatterOptions, async_op, timeout, reduceOp=_reduction(op))
    return _done(group.reduce_scatter_single(output, source, opts), output)


def _reduce_scatter_coalesced(
    group: Any, outputs: Any, inputs: Any, op: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    opts = _options(c10d.ReduceScatterOptions, async_op, timeout, reduceOp=_reduction(op))
    return _done(group.reduce_scatter_single_coalesced(outputs, inputs, opts))


def _broadcast(
    group: Any, tensors: Any, root: int, root_tensor: int, async_op: bool = True, timeout: int = -1
) -> Any:
    opts = _options(c10d.BroadcastOptions, async_op, timeout, rootRank=root)
    return _done(group.broadcast(tensors, opts), tensors)


def _allgather(
    group: Any, outputs: Any, inputs: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    opts = _options(c10d.AllgatherOptions, async_op, timeout)
    return _done(group.allgather(outputs, inputs, opts), outputs)


def _allgather_base(
    group: Any, output: Any, source: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    opts = _options(c10d.AllgatherOptions, async_op, timeout)
    return _done(group.all_gather_single(output, source, opts), output)


def _allgather_coalesced(group: Any, outputs: Any, inputs: Any, async_op: bool = True) -> Any:
    opts = _options(c10d.AllgatherOptions, async_op, -1)
    return _done(group.allgather_coalesced(outputs, inputs, opts))


def _allgather_into_coalesced(group: Any, outputs: Any, inputs: Any, async_op: bool = True) -> Any:
    opts = _options(c10d.AllgatherOptions, async_op, -1)
    return _done(group.all_gather_single_coalesced(outputs, inputs, opts))


def _gather(
    group: Any, outputs: Any, inputs: Any, root: int, async_op: bool = True, timeout: int = -1
) -> Any:
    opts = _options(c10d.GatherOptions, async_op, timeout, rootRank=root)
    return _done(group.gather(outputs, inputs, opts))


def _scatter(
    group: Any, outputs: Any, inputs: Any, root: int, async_op: bool = True, timeout: int = -1
) -> Any:
    opts = _options(c10d.ScatterOptions, async_op, timeout, rootRank=root)
    return _done(group.scatter(outputs, inputs, opts), outputs)


def _alltoall(
    group: Any, outputs: Any, inputs: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    opts = _options(c10d.AllToAllOptions, async_op, timeout)
    return _done(group.alltoall(outputs, inputs, opts), outputs)


def _alltoall_base(
    group: Any,
    output: Any,
    source: Any,
    output_splits: Any,
    input_splits: Any,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    opts = _options(c10d.AllToAllOptions, async_op, timeout)
    return _done(group.all_to_all_single(output, source, output_splits, input_splits, opts))


def _barrier(
    group: Any, tensor: Any, devices: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    return _done(group.barrier(_options(c10d.BarrierOptions, async_op, timeout)))


def _monitored_barrier(
    group: Any, tensor: Any, devices: Any, timeout: int, wait_all_ranks: bool
) -> None:
    limit = timedelta(milliseconds=timeout) if timeout >= 0 else None
    group.monitored_barrier(limit, wait_all_ranks)


def _send(group: Any, tensors: Any, peer: int, tag: int) -> Any:
    return _done(group.send(tensors, peer, tag))


def _recv(group: Any, tensors: Any, peer: int, tag: int) -> Any:
    return _done(group.recv(tensors, peer, tag))


def _recv_any_source(group: Any, tensors: Any, tag: int) -> Any:
    return _done(group.recv_anysource(tensors, tag))


def _batch_p2p_ops(
    group: Any, kinds: Sequence[str], peers: Sequence[int], tags: Sequence[int], tensors: Any
) -> list[torch.Tensor]:
    """Post sends and receives; return what to wait for: received tensors, and empty ones."""
    results = []
    for kind, peer, tag, tensor in zip(kinds, peers, tags, tensors, strict=True):
        sends = kind == "isend"
        work = (group.send if sends else group.recv)([tensor], peer, tag)
        results.append(tensor.new_empty(0) if sends else tensor)
        c10d._register_work(results[-1], _held(work))
    return results


_OF_GROUPS: dict[str, Callable[..., Any]] = {
    "allreduce_": _allreduce,
    "allreduce_coalesced_": _allreduce_coalesced,
    "reduce_": _reduce,
    "reduce_scatter_": _reduce_scatter,
    "_reduce_scatter_base_": _reduce_scatter_base,
    "reduce_scatter_tensor_coalesced_": _reduce_scatter_coalesced,
    "broadcast_": _broadcast,
    "allgather_": _allgather,
    "_allgather_base_": _allgather_base,
    "allgather_coalesced_": _allgather_coalesced,
    "allgather_into_tensor_coalesced_": _allgather_into_coalesced,
    "gather_": _gather,
    "scatter_": _scatter,
    "alltoall_": _alltoall,
    "alltoall_base_": _alltoall_base,
    "barrier": _barrier,
    "monitored_barrier_": _monitored_barrier,
    "send": _send,
    "recv_": _recv,
    "recv_any_source_": _recv_any_source,
}
_KERNELS: dict[str, dict[str, tuple[Callable[..., Any], Callable[..., Any]]]] = {
    "c10d": {name: (_serve, kernel) for name, kernel in _OF_GROUPS.items()},
    "_c10d_functional": {"batch_p2p_ops": (_serve_named, _batch_p2p_ops)},
}
