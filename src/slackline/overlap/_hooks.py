"""Hooks of a parameter, which autograd calls before and after it accumulates a gradient.

They run once for each parameter and backward pass, so they do as little as they can, and where they
are not needed they go. A hook holds on to nothing: Python's collector cannot see cycles that lead
through autograd.
"""

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from slackline.overlap._parameter_state import ParameterState, Phase

__all__ = ["ParameterHooks"]

Hook = Callable[[Tensor], None]


class ParameterHooks:
    """The hooks of one parameter, as many of them as are needed."""

    def __init__(self, state: ParameterState) -> None:
        self._parameter: Any = state.parameter
        self._before = _before_gradient(state)
        self._on = _on_gradient(state)
        self._before_handle: RemovableHandle | None = None
        self._on_handle: RemovableHandle | None = None

    def place(self, *, before: bool, on: bool) -> None:
        """Have autograd call `before_gradient`, `on_gradient`, both or neither from now on."""
        parameter = self._parameter
        frozen = not parameter.requires_grad
        if frozen:  # torch refuses a hook on it, but it may be trained again
            parameter.requires_grad_(True)
        self._place(parameter, before=before, on=on)
        if frozen:
            parameter.requires_grad_(False)

    def _place(self, parameter: Any, *, before: bool, on: bool) -> None:
        if before and self._before_handle is None:
            self._before_handle = parameter.register_hook(self._before)
        elif not before and self._before_handle is not None:
            self._before_handle.remove()
            self._before_handle = None
            # Autograd would go on to wrap each gradient for a dict of hooks that is empty.
            if not parameter._backward_hooks:
                parameter._backward_hooks = None
        if on and self._on_handle is None:
            self._on_handle = parameter.register_post_accumulate_grad_hook(self._on)
        elif not on and self._on_handle is not None:
            self._on_handle.remove()
            self._on_handle = None
            if not parameter._post_accumulate_grad_hooks:
                parameter._post_accumulate_grad_hooks = None


def _before_gradient(state: ParameterState) -> Hook:
    """Return what is called with the gradient, before it is added to the parameter's."""
    of_state, local = weakref.ref(state), Phase.LOCAL

    def before(_: Tensor) -> None:
        state = of_state()
        if state is not None and (state.phase is not local or state.due):
            state.before_gradient(state)

    return before


def _on_gradient(state: ParameterState) -> Hook:
    """Return what is called with the parameter, whose gradient is whole."""
    of_state = weakref.ref(state)

    def on(_: Tensor) -> None:
        state = of_state()
        if state is None:
            return
        if state.copied_at_once:
            state.copy()
        group = state.gradient_group
        if group.hooked_last is not None and group.hooked_last is not state:
            return
        if not state.armed:
            state.on_gradient(state)
            return
        state.armed, state.arrived = False, True
        group.missing -= 1
        if not group.missing:
            group.last = state
            state.on_last_gradient(group)

    return on
