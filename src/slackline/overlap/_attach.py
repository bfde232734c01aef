"""Functions that make a module's parameters lazy, and ordinary again.

A read of a lazy parameter first waits for the parameter's pending update. Compiled code reads
parameters without Python's lookups, so a compiled module's parameters stay ordinary: a forward
pre-hook finishes all their updates before the module runs. Parameters that a module keeps in a list
of its own, as nn.LSTM does, are treated alike. A module that is compiled after wrapping has a hook
that finishes all updates while the module is traced.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from slackline.overlap.reduction import LazyParameters, ReadTracker

__all__ = ["all_parameters", "attach", "compiled_parameters", "detach"]


class _Finish:
    """A forward pre-hook that finishes the pending updates of the given parameters.

    A copy of the module gets a hook that does nothing.
    """

    def __init__(self, tracker: ReadTracker | None, parameters: Sequence[nn.Parameter]) -> None:
        self._tracker = tracker
        self._parameters = parameters

    def __call__(self, module: nn.Module, arguments: Any) -> None:
        if self._tracker is not None and self._tracker.model.busy:
            self._tracker.use(self._parameters)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Finish, (None, ())


class _FinishIfCompiled:
    """A forward pre-hook that finishes pending updates while torch.compile traces the module.

    The hook serves a module that is compiled later, and not through the wrapper's `compile`.
    """

    def __init__(self, finish: _Finish) -> None:
        self._finish: Any = torch.compiler.disable(finish)  # type: ignore[no-untyped-call]

    def __call__(self, module: nn.Module, arguments: Any) -> None:
        if torch.compiler.is_compiling():
            self._finish(module, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Finish, (None, ())


def attach(module: nn.Module, tracker: ReadTracker) -> list[RemovableHandle]:
    """Make the parameters of a module and its submodules lazy; return the hooks to remove later.

    A read of a lazy parameter first waits for the parameter's pending update.
    """
    late = _FinishIfCompiled(_Finish(tracker, all_parameters(module)))
    handles = [module.register_forward_pre_hook(late)]
    opaque: set[int] = set()
    for child in module.modules():
        if _is_opaque(child):
            opaque.update(map(id, child.modules()))
            handles.append(child.register_forward_pre_hook(_Finish(tracker, all_parameters(child))))
    for child in module.modules():
        if id(child) in opaque:
            continue
        hidden = _hidden(child)
        if hidden:
            handles.append(child.register_forward_pre_hook(_Finish(tracker, hidden)))
        child.__dict__["_parameters"] = LazyParameters(child._parameters, tracker)
    return handles


def detach(module: nn.Module, handles: Sequence[RemovableHandle]) -> None:
    """Make the parameters of a module and its submodules ordinary again; remove the hooks."""
    for handle in handles:
        handle.remove()
    for child in module.modules():
        parameters = child.__dict__.get("_parameters")
        if isinstance(parameters, LazyParameters):
            child.__dict__["_parameters"] = parameters.plain()


def compiled_parameters(modules: Sequence[nn.Module]) -> list[nn.Parameter]:
    """Return the parameters of the modules that `compile()` was called on.

    The parameters of these modules become ordinary again.
    """
    found: dict[int, nn.Parameter] = {}
    for module in modules:
        if module._compiled_call_impl is not None:
            found.update((id(parameter), parameter) for parameter in all_parameters(module))
            detach(module, ())
    return list(found.values())


def _is_opaque(module: nn.Module) -> bool:
    return isinstance(module, torch._dynamo.OptimizedModule | torch.jit.ScriptModule)


def all_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a module and its submodules, without waiting for their values.

    A parameter that the module uses in several places occurs as often.
    """
    found = []
    for child in module.modules():
        parameters = child.__dict__.get("_parameters", child._parameters)
        lazy = isinstance(parameters, LazyParameters)
        found += [
            parameter
            for parameter in (parameters.peek() if lazy else parameters.values())
            if parameter is not None
        ]
    return found


def _hidden(module: nn.Module) -> list[nn.Parameter]:
    found = []
    for name, value in vars(module).items():
        if name != "_parameters" and isinstance(value, list | tuple | dict):
            members = value.values() if isinstance(value, dict) else value
            found += [member for member in members if isinstance(member, nn.Parameter)]
    return found
