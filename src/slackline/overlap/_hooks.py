"""Hooks of a parameter, which autograd calls before and after it accumulates a gradient.

A hook holds on to nothing: Python's collector cannot see cycles that lead through autograd.
"""

import weakref

from torch import Tensor

from slackline.overlap._slot import Slot

__all__ = ["BeforeGradient", "OnGradient"]


class _Hook:
    __slots__ = ("_slot",)

    def __init__(self, slot: Slot) -> None:
        self._slot = weakref.ref(slot)


class BeforeGradient(_Hook):
    """Called with the gradient, before it is added to the parameter's."""

    def __call__(self, _: Tensor) -> None:
        slot = self._slot()
        if slot is not None:
            slot.before_gradient(slot)


class OnGradient(_Hook):
    """Called with the parameter, whose gradient is whole."""

    def __call__(self, _: Tensor) -> None:
        slot = self._slot()
        if slot is not None:
            slot.on_gradient(slot)
