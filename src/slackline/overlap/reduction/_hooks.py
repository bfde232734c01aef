"""Hooks of a parameter, which autograd calls before and after it accumulates a gradient.

The hooks run once for each parameter and backward pass, so they do little work, and needless ones
are removed. A hook holds only weak references, since Python's garbage collector cannot see cycles
that lead through autograd.
"""

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from slackline.overlap.reduction._parameter_state import ParameterState, Phase

__all__ = ["ParameterHooks"]

Hook = Callable[[Tensor], None]


class ParameterHooks:
    """The two autograd hooks of one parameter; either hook may be absent."""

    def __init__(self, state: ParameterState) -> None:
        self._parameter: Any = state.parameter
        self._before = _before_gradient(state)
        self._on = _on_gradient(state)
        self._before_handle: RemovableHandle | None = None
        self._on_handle: RemovableHandle | None = None

    def place(self, *, before: bool, on: bool) -> None:
        """Register or remove the autograd hooks before and after accumulation of the gradient.

        `before` and `on` tell whether the parameter shall have the first and the second hook.
        """
        parameter = self._parameter
        frozen = not parameter.requires_grad
        if frozen:  # torch refuses hooks on frozen parameters, but the user may unfreeze them
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
            # Autograd wraps each gradient for hooks, at a cost, even if this dict is empty.
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
    """Return the hook that autograd calls before it adds a gradient to the parameter's `grad`."""
    of_state, local = weakref.ref(state), Phase.LOCAL

    def before(_: Tensor) -> None:
        state = of_state()
        if state is not None and (state.phase is not local or state.due):
            state.before_gradient(state)

    return before


def _on_gradient(state: ParameterState) -> Hook:
    """Return the hook that autograd calls after it has accumulated the parameter's gradient."""
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
