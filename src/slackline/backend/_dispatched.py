"""Operations that pass through torch's dispatcher, as operators `c10d::*`, on their way to the NIC.

    SlacklineGroup.broadcast ─┬─ a profiler or execution trace ─ c10d::broadcast_ ─ returns at once
                              ├─ a tensor with memory of its own ─────────────────────────── engine
                              └─ a wrapper, or an active dispatch mode
                                   DispatcherView.broadcast ─ c10d::broadcast_
                                     ─ modes, subclasses, torch.func ─ kernel ─ broadcast ─ engine

torch's operators for process groups end at a C++ backend, which slackline has not. Kernels in
Python, for the dispatch key BackendSelect, come before torch's own kernels and after all modes and
wrappers. Operators that compiled code calls with a slackline group end here too. Groups of other
backends go on to torch's own kernels, without the GIL.

An operation that needs no dispatcher is shown to tools that record operators by a call of the
operator for which the kernel does nothing; the operation itself follows on its own way.
"""

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cached_property, wraps
from typing import Any, TypeVar

import torch
from torch import distributed as dist

from slackline._lazy import record
from slackline.backend._identity import Identity
from slackline.backend._torch import c10d, held
from slackline.backend.operations import Call, CoalescedWork, TransferWork, in_dispatcher
from slackline.backend.profiling import observed, profiling
from slackline.backend.staging import NeedsDispatcher, needs_dispatcher
from slackline.errors import UsageError

__all__ = [
    "OPERATIONS",
    "DispatcherView",
    "dispatched",
    "pass_through",
    "serve_operators",
    "show",
    "through_dispatcher",
]

_Kind = TypeVar("_Kind")
_functorch = torch._C._functorch
_TAG = {"send": 2, "recv": 2, "recv_anysource": 1}
"""The place of the tag among the arguments of each kind of message."""

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
OPERATIONS = ("allreduce", *_METHODS)
"""The methods of a process group that torch's dispatcher can call."""


class DispatcherView(Identity):
    """A ProcessGroup whose operations are torch's own, which call the dispatcher.

    torch's tools see this group in place of `owner`, with the owner's name.
    """

    def __init__(self, owner: Any) -> None:
        super().__init__(owner.get_group_store(), owner.rank(), owner.size(), owner.default_timeout)
        self._owner = weakref.ref(owner)
        self._set_group_name(owner.group_name)
        self._set_group_desc(owner.group_desc)

    @property
    def owner(self) -> Any:
        """The group with slackline's operations; None once nobody else refers to it."""
        return self._owner()

    def _get_sequence_number_for_group(self) -> int:
        return int(self.owner._get_sequence_number_for_group())


def dispatched(kind: type[_Kind]) -> type[_Kind]:
    """Have the operations of a process group's class call the dispatcher where they must.

    A method that raises NeedsDispatcher, before it has posted anything, is called again as torch's
    own method of a DispatcherView. All others are shown to the tools that record operators.
    """
    for name in _METHODS:
        setattr(kind, name, _with_dispatcher(name, getattr(kind, name)))
    return kind  # `allreduce`, the most frequent, calls both functions itself.


def _with_dispatcher(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if profiling() or observed():
            show(self, name, args, kwargs)
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
    if in_dispatcher.kernels:
        kinds = ", ".join(
            type(tensor).__name__ for tensor in _tensors_of([*args, *kwargs.values()])
        )
        raise UsageError(f"{name} of {kinds}: torch's dispatcher passes on what only it can read")
    return pass_through(
        group, name, args, kwargs, refusals=(NotImplementedError, RuntimeError, TypeError)
    )


def pass_through(
    group: Any,
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    refusals: tuple[type[Exception], ...] = (NotImplementedError,),
) -> dist.Work:
    """Call an operation of a SlacklineGroup by the operator of torch's dispatcher.

    Raises UsageError in place of an error whose type is one of `refusals`.
    """
    args = _with_tag(name, _awaited(args), kwargs)
    _check_signs(name, [*args, *kwargs.values()])
    kwargs = {key: _awaited(value) for key, value in kwargs.items()}
    call = Call(_reduction_of([*args, *kwargs.values()]))
    in_dispatcher.calls.append(call)
    try:
        result: dist.Work = getattr(group.dispatcher_view(), name)(*args, **kwargs)
    except Exception as error:
        # torch's own refusals have no types of their own. Errors of modes and of the engine, and
        # those after the operation was posted, stay what they are.
        if type(error) not in refusals or call.works:
            raise
        kinds = ", ".join(
            type(tensor).__name__ for tensor in _tensors_of([*args, *kwargs.values()])
        )
        raise UsageError(
            f"torch passes no {name} of {kinds} to a process group: {error}"
        ) from error
    finally:
        in_dispatcher.calls.pop()
    if not call.works:
        return result  # A mode has answered, such as one that only traces.
    if len(call.works) == 1:
        return call.works[0]
    return CoalescedWork([work for work in call.works if isinstance(work, TransferWork)])


def _check_signs(name: str, values: Sequence[Any]) -> None:
    """Raise UsageError for a lazily negated or conjugated tensor.

    torch's dispatcher passes on a copy with the signs applied, and forgets what is written to it.
    """
    if any(tensor.is_neg() or tensor.is_conj() for tensor in _tensors_of(values)):
        raise UsageError(
            f"{name} of a lazily negated or conjugated tensor through torch's dispatcher, which "
            "changes a copy of it: pass its resolve_neg().resolve_conj()"
        )


def show(group: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Have torch's tools record an operation of a SlacklineGroup as an operator "c10d::*".

    Nothing is posted. An operation that the dispatcher passes on, or will pass on, is recorded
    without this function.
    """
    if in_dispatcher.kernels or torch._C._len_torch_dispatch_stack():
        return
    if not (_are_apart(args) and _are_apart(kwargs.values())):
        return
    if name in _TAG:
        args = _with_tag(name, args, kwargs)
    operator = getattr(group.dispatcher_view(), name)
    in_dispatcher.shows = True
    try:
        with torch._C._ExcludeDispatchKeyGuard(_ABOVE):
            operator(*args, **kwargs)
    except TypeError:
        return  # torch's method takes no such arguments. The caller's own method names the mistake.
    finally:
        in_dispatcher.shows = False


def _are_apart(values: Iterable[Any]) -> bool:
    """Return whether no tensor among the arguments is a wrapper around other tensors."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if needs_dispatcher(value):
                return False
        elif isinstance(value, (list, tuple)) and not _are_apart(value):
            return False
    return True


def _with_tag(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
    """Return the arguments of a message with its tag, for which torch's methods have no default."""
    return (*args, 0) if len(args) == _TAG.get(name) and "tag" not in kwargs else args


def _awaited(value: Any) -> Any:
    """Wait for the results of functional collectives in lists of arguments; return them plain."""
    # A program without functional collectives has not imported their module, which takes long.
    module = sys.modules.get("torch.distributed._functional_collectives")
    kind = getattr(module, "AsyncCollectiveTensor", None)  # None while another thread imports it
    if kind is not None and isinstance(value, kind):
        return value.trigger_wait()
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


def _tensors_of(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors in arguments and in lists of arguments."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors_of(value)


def serve_operators() -> None:
    """Have torch's operators for process groups serve slackline's groups."""
    with _lock:
        if _served:
            return
        for space, kernels in _KERNELS.items():
            library: Any = torch.library.Library(space, "IMPL")  # type: ignore[no-untyped-call]
            for name, kernel in kernels.items():
                called = _Operator(space, name, kernel)
                library.impl(name, called, "BackendSelect", with_keyset=True)
            _served.append(library)


_lock = threading.Lock()
_served: list[Any] = []
"""The libraries of kernels, which last as long as they are referred to."""
_BELOW = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
"""The dispatch keys of the kernels that come after slackline's."""
_ABOVE = (
    torch._C._dispatch_keyset_full()
    - _BELOW
    - torch._C.DispatchKeySet(torch._C.DispatchKey.BackendSelect)
)
"""The dispatch keys of the kernels that come before slackline's, such as transforms."""
_META = torch._C.DispatchKey.Meta
"""The dispatch key of tensors without memory, by which torch learns the shapes of results."""
_FINISHED = c10d.FakeWork().boxed()
"""The Work of an operator that is only recorded."""


class _Operator:
    """An operator of torch's, which calls slackline's kernel if its group is slackline's."""

    def __init__(self, space: str, name: str, kernel: Callable[..., Any]) -> None:
        self._space = space
        self._name = name
        self._kernel = kernel

    @cached_property
    def _torch(self) -> Any:
        """Torch's operator. It is looked up at the first call: that takes some 60 us."""
        return getattr(getattr(torch.ops, self._space), self._name).default

    @cached_property
    def _place(self) -> int:
        """The place of the group among the operator's arguments."""
        names = [argument.name for argument in self._torch._schema.arguments]
        return names.index("process_group" if self._space == "c10d" else "group_name")

    @cached_property
    def _returns_first(self) -> bool:
        """Whether the operator returns its first argument before the Work."""
        return len(self._torch._schema.returns) == 2

    def __call__(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        """Call slackline's kernel without the group, or go on to torch's kernel.

        torch gives the arguments by position, and by name those that follow the group.
        """
        if in_dispatcher.shows:
            return (args[0], _FINISHED) if self._returns_first else _FINISHED
        place = self._place
        group: Any = args[place]
        if isinstance(group, str):
            group = c10d._resolve_process_group(group)  # type: ignore[arg-type]
        else:
            group = dist.ProcessGroup.unbox(group)
        owner = group.owner if isinstance(group, DispatcherView) else group
        if keys.has(_META) or not hasattr(owner, "dispatcher_view"):
            return self._torch.redispatch(keys & _BELOW, *args, **kwargs)
        rest = map(_unwrapped, (*args[:place], *args[place + 1 :]))
        in_dispatcher.kernels += 1
        try:
            if owner.hooked and isinstance(self._kernel, _Kernel | _Message):
                # torch's kernel calls the hooks, and between them the group's BackendBelow.
                given = [*rest]
                given.insert(place, owner.boxed())
                return self._torch.redispatch(keys & _BELOW, *given, **kwargs)
            return self._kernel(owner, *rest, **kwargs)
        finally:
            in_dispatcher.kernels -= 1


def _unwrapped(value: Any) -> Any:
    """Return the values of torch.func's gradients in lists of lists, where torch leaves them."""
    while isinstance(value, torch.Tensor) and _functorch.is_gradtrackingtensor(value):
        value = _functorch.get_unwrapped(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_unwrapped, value))
    return value


def _done(work: dist.Work, *results: Any) -> Any:
    if in_dispatcher.calls:
        in_dispatcher.calls[-1].works.append(work)
    handed = held(work).boxed()
    return (*results, handed) if results else handed


def _reduction(op: Any) -> Any:
    """Return the dist.ReduceOp of an operator's argument.

    The argument tells no factor of PREMUL_SUM, so the caller's own reduction is taken if it is of
    the same kind.
    """
    kind = dist.ReduceOp.RedOpType(op.op())
    given = in_dispatcher.calls[-1].reduction if in_dispatcher.calls else None
    return kind if given is None or given != kind else given


@record(frozen=True, slots=True)
class _Kernel:
    """An operator's call of a group's method.

    The operator's arguments, without the group: `given` arguments of the method, one for each of
    `fields`, then whether the call is asynchronous, then its timeout in milliseconds.
    """

    method: str
    options: Any
    """torch's class of the method's options."""
    given: int
    fields: tuple[str, ...] = ()
    """The options' fields that the operator's arguments set; "" for an argument without use."""
    returns: bool = False
    """Whether the operator returns its first argument before the Work."""

    def __call__(self, group: Any, *arguments: Any) -> Any:
        given, rest = arguments[: self.given], arguments[self.given :]
        options = self.options()
        for name, value in zip(self.fields, rest, strict=False):
            if name:
                setattr(options, name, _reduction(value) if name == "reduceOp" else value)
        last = rest[len(self.fields) :]
        options.asyncOp = last[0] if last else True
        timeout = last[1] if len(last) > 1 else -1
        if timeout >= 0:
            options.timeout = timedelta(milliseconds=timeout)
        work = getattr(group, self.method)(*given, options)
        return _done(work, *(given[:1] if self.returns else ()))


def _monitored_barrier(
    group: Any, tensor: Any, devices: Any, timeout: int, wait_all_ranks: bool
) -> None:
    limit = timedelta(milliseconds=timeout) if timeout >= 0 else None
    group.monitored_barrier(limit, wait_all_ranks)


@record(frozen=True, slots=True)
class _Message:
    """An operator's call of a group's method for one message."""

    method: str

    def __call__(self, group: Any, *arguments: Any) -> Any:
        return _done(getattr(group, self.method)(*arguments))


def _batch_p2p_ops(
    group: Any, kinds: Sequence[str], peers: Sequence[int], tags: Sequence[int], tensors: Any
) -> list[torch.Tensor]:
    """Post sends and receives; return what to wait for: received tensors, and empty ones."""
    results = []
    for kind, peer, tag, tensor in zip(kinds, peers, tags, tensors, strict=True):
        sends = kind == "isend"
        work = (group.send if sends else group.recv)([tensor], peer, tag)
        results.append(tensor.new_empty(0) if sends else tensor)
        c10d._register_work(results[-1], held(work))
    return results


_ROOT = ("rootRank", "")
_OF_GROUPS: dict[str, Callable[..., Any]] = {
    "allreduce_": _Kernel("allreduce", c10d.AllreduceOptions, 1, ("reduceOp", ""), returns=True),
    "allreduce_coalesced_": _Kernel(
        "allreduce_coalesced", c10d.AllreduceCoalescedOptions, 1, ("reduceOp",)
    ),
    "reduce_": _Kernel("reduce", c10d.ReduceOptions, 1, ("reduceOp", *_ROOT)),
    "reduce_scatter_": _Kernel(
        "reduce_scatter", c10d.ReduceScatterOptions, 2, ("reduceOp",), returns=True
    ),
    "_reduce_scatter_base_": _Kernel(
        "reduce_scatter_single", c10d.ReduceScatterOptions, 2, ("reduceOp",), returns=True
    ),
    "reduce_scatter_tensor_coalesced_": _Kernel(
        "reduce_scatter_single_coalesced", c10d.ReduceScatterOptions, 2, ("reduceOp",)
    ),
    "broadcast_": _Kernel("broadcast", c10d.BroadcastOptions, 1, _ROOT, returns=True),
    "allgather_": _Kernel("allgather", c10d.AllgatherOptions, 2, returns=True),
    "_allgather_base_": _Kernel("all_gather_single", c10d.AllgatherOptions, 2, returns=True),
    "allgather_coalesced_": _Kernel("allgather_coalesced", c10d.AllgatherOptions, 2),
    "allgather_into_tensor_coalesced_": _Kernel(
        "all_gather_single_coalesced", c10d.AllgatherOptions, 2
    ),
    "gather_": _Kernel("gather", c10d.GatherOptions, 2, ("rootRank",)),
    "scatter_": _Kernel("scatter", c10d.ScatterOptions, 2, ("rootRank",), returns=True),
    "alltoall_": _Kernel("alltoall", c10d.AllToAllOptions, 2, returns=True),
    "alltoall_base_": _Kernel("all_to_all_single", c10d.AllToAllOptions, 4),
    "barrier": _Kernel("barrier", c10d.BarrierOptions, 0, ("", "")),
    "monitored_barrier_": _monitored_barrier,
    "send": _Message("send"),
    "recv_": _Message("recv"),
    "recv_any_source_": _Message("recv_anysource"),
}
_KERNELS: dict[str, dict[str, Callable[..., Any]]] = {
    "c10d": _OF_GROUPS,
    "_c10d_functional": {"batch_p2p_ops": _batch_p2p_ops},
}
