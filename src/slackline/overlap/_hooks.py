"""Hooks of a parameter, which autograd calls before and after it accumulates a gradient.

They run once for each parameter and backward pass, so they do as little as they can. A hook holds
on to nothing: Python's collector cannot see cycles that lead through autograd.
"""

import weakref
from collections.abc import Callable

from torch import Tensor

from slackline.overlap._parameter_state import ParameterState, Phase

__all__ = ["before_gradient", "on_gradient"]

Hook = Callable[[Tensor], None]


def before_gradient(state: ParameterState) -> Hook:
    """Return what is called with the gradient, before it is added to the parameter's."""
    of_state, local = weakref.ref(state), Phase.LOCAL

    def before(_: Tensor) -> None:
        state = of_state()
        if state is not None and (state.phase is not local or state.due):
            state.before_gradient(state)

    return before


def on_gradient(state: ParameterState) -> Hook:
    """Return what is called with the parameter, whose gradient is whole."""
    of_state = weakref.ref(state)

    def on(_: Tensor) -> None:
        state = of_state()
        if state is None:
            return
        if not state.armed:
            state.on_gradient(state)
            return
        state.armed, state.arrived = False, True
        group = state.gradient_group
        group.missing -= 1
        if not group.missing:
            state.on_last_gradient(group)

    return on
