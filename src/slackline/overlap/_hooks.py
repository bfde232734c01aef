"""Hooks of a parameter, which autograd calls before and after it accumulates a gradient.

They run once for each parameter and backward pass, so they do as little as they can. A hook holds
on to nothing: Python's collector cannot see cycles that lead through autograd.
"""

import weakref
from collections.abc import Callable

from torch import Tensor

from slackline.overlap._slot import Phase, Slot

__all__ = ["before_gradient", "on_gradient"]

Hook = Callable[[Tensor], None]


def before_gradient(slot: Slot) -> Hook:
    """Return what is called with the gradient, before it is added to the parameter's."""
    of_slot, local = weakref.ref(slot), Phase.LOCAL

    def before(_: Tensor) -> None:
        slot = of_slot()
        if slot is not None and (slot.phase is not local or slot.due):
            slot.before_gradient(slot)

    return before


def on_gradient(slot: Slot) -> Hook:
    """Return what is called with the parameter, whose gradient is whole."""
    of_slot = weakref.ref(slot)

    def on(_: Tensor) -> None:
        slot = of_slot()
        if slot is None:
            return
        if not slot.armed:
            slot.on_gradient(slot)
            return
        slot.armed, slot.arrived = False, True
        group = slot.gradient_group
        group.missing -= 1
        if not group.missing:
            slot.on_last_gradient(group)

    return on
