"""Classes for parameters whose values or gradients are not finished, which report each read.

A program may keep Parameter objects in a list of its own and read them without the module, as many
moving averages of weights do. Such a read makes no lookup in a lazy dict. While a parameter's
update is pending, or its gradient is not reduced yet, the object therefore has a subclass of its
class, whose `__torch_function__` torch calls before each operation on the parameter:

    an attribute such as `shape`      nothing is reported
    `grad`                            a read of the gradient is reported
    any other function or attribute   a read of the value is reported

The object has its own class again before any layer uses the parameter, so forward and backward
passes cost nothing more. Another tensor that shares a parameter's memory, such as `p.data`, makes
no report at all; `kept_elsewhere` finds these parameters by the count of the memory's users.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from slackline.overlap.reduction._parameter_state import ParameterState

__all__ = ["WatchedParameters"]

Report = Callable[[Tensor, bool], None]

_FACTS = (
    *("shape", "dtype", "device", "layout", "requires_grad", "is_leaf", "ndim", "grad_fn"),
    *("is_cuda", "is_cpu", "is_meta", "is_sparse", "is_quantized", "is_nested", "itemsize"),
    *("nbytes", "numel", "nelement", "stride", "storage_offset", "element_size"),
    *("is_contiguous", "is_floating_point", "is_complex", "__len__", "register_hook"),
    *("register_post_accumulate_grad_hook", "_backward_hooks", "_post_accumulate_grad_hooks"),
)
"""The names of functions and attributes that depend neither on values nor on gradients."""


def _functions(owner: Any, names: Iterable[str]) -> set[Any]:
    found = [getattr(owner, name) for name in names if hasattr(owner, name)]
    return {each if callable(each) else each.__get__ for each in found}


_HARMLESS = _functions(Tensor, _FACTS) | _functions(torch, _FACTS)
_OF_GRADIENT: Sequence[Any] = tuple(
    getattr(getattr(Tensor, attribute), method)
    for attribute in ("grad", "_grad")
    for method in ("__get__", "__set__", "__delete__")
)


class WatchedParameters:
    """The parameters of one model that report their reads, and the classes that they have then."""

    def __init__(self, report: Report) -> None:
        """Call `report` at each read, with the parameter, and with True for a read of its gradient.

        The parameter has its own class again afterwards if `report` has finished it.
        """
        self._report = report
        self._classes: dict[type, type] = {}
        """The class of watched parameters for each class of parameters."""
        self._own: dict[type, type] = {}
        """The inverse of `_classes`."""
        self._storages: dict[ParameterState, torch.UntypedStorage] = {}
        """The memory of parameters when its users were counted last (see `kept_elsewhere`)."""

    def watch(self, parameters: Iterable[Tensor]) -> None:
        """Let reads of these parameter objects be reported, until `unwatch`."""
        classes, own = self._classes, self._own
        for parameter in parameters:
            kind = type(parameter)
            if kind in own:
                continue
            watched = classes.get(kind)
            if watched is None:
                watched = classes[kind] = self._make(kind)
                own[watched] = kind
            parameter.__class__ = watched

    def unwatch(self, parameters: Iterable[Tensor]) -> None:
        """Let these parameter objects be read without a report again."""
        own_class = self._own.get
        for parameter in parameters:
            own = own_class(type(parameter))
            if own is not None:
                parameter.__class__ = own

    def kept_elsewhere(self, states: Iterable[ParameterState]) -> list[ParameterState]:
        """Return the states of the parameters whose memory a tensor of the program shares.

        Parameters that share memory only with each other do not count.
        """
        count_users, storage_of = torch._C._storage_Use_Count, self._storages.get
        # Of the users, one is the parameter, and one the object that is kept here.
        suspects = [
            state
            for state in states
            if (storage := storage_of(state)) is None or count_users(storage._cdata) != 2
        ]
        for state in suspects:  # the program may have given the parameter other memory
            self._storages[state] = state.parameter.untyped_storage()
        sharing: defaultdict[int, list[ParameterState]] = defaultdict(list)
        for state in suspects:
            sharing[self._storages[state]._cdata].append(state)
        return [
            state
            for storage, users in sharing.items()
            if count_users(storage) - 1 > len(users)
            for state in users
        ]

    def forget(self, state: ParameterState) -> None:
        """Keep nothing about a parameter that is not reduced any more."""
        self.unwatch((state.parameter,))
        self._storages.pop(state, None)

    def _make(self, kind: type) -> type:
        report, made = self._report, self._classes.values()

        def __torch_function__(  # noqa: N807  # torch calls it
            cls: type, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            watched = [each for each in tree_leaves((args, kwargs)) if type(each) in made]
            if function not in _HARMLESS:
                for parameter in watched:
                    if type(parameter) in made:
                        report(parameter, function in _OF_GRADIENT)
            if not any(type(parameter) in made for parameter in watched):
                return function(*args, **kwargs)
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **kwargs)

        def __deepcopy__(parameter: Any, memo: dict[int, Any]) -> Any:  # noqa: N807
            report(parameter, False)
            copy: Any = kind.__deepcopy__(parameter, memo)  # type: ignore[attr-defined]
            copy.__class__ = kind
            return copy

        # Compiled code would inline the function and read the parameter too early.
        opaque = torch.compiler.disable(__torch_function__)  # type: ignore[no-untyped-call]
        namespace = {
            "__torch_function__": classmethod(opaque),
            "__deepcopy__": __deepcopy__,
            "__module__": kind.__module__,
        }
        return type(kind)(kind.__name__, (kind,), namespace)
