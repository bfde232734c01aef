"""Weights of the virtual ranks' losses, whose sum divides the gradients once.

    gradients   sums of losses, added in the tree           |-------- group --------|
    weights     added in the same tree, in 64 bits      set |-- sum --|             | / sum

A virtual rank with padded sequences has a number of tokens of its own. The gradient of the mean
over all tokens is the sum of the gradients, divided by the sum of the numbers. Gradients leave
before that sum is known, and are divided when both have come.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from slackline.errors import UsageError

if TYPE_CHECKING:
    from slackline.overlap.exchange import NodeExchange, Pending

__all__ = ["Weights", "check_weighted"]


def check_weighted(weighted: object, virtual_ranks: object, average: object) -> None:
    """Raise UsageError unless `weighted` fits the other options of DataParallel."""
    if not isinstance(weighted, bool):
        raise UsageError(f"weighted must be True or False, not {weighted!r}")
    if weighted and virtual_ranks is None:
        raise UsageError("weighted=True needs virtual ranks: DataParallel(virtual_ranks=8)")
    if weighted and not average:
        raise UsageError("weighted=True divides gradients, so average must be True, not False")


class Weights:
    """The weights of the virtual ranks of the present step."""

    def __init__(self, exchange: "NodeExchange", key: int) -> None:
        """Allocate memory of the exchange for the sum, which uses `key`."""
        (self.flat,) = exchange.allocate([(1, torch.float64)])
        """The weight of the present virtual rank, and later the sum."""
        self._post = exchange.reduction(key, self.flat, average=False)
        self._total = _Total(self.flat, 0)

    def begin(self, step: int) -> "_Total":
        """Begin a step; return its sum, which is on its way when the last weight has been added."""
        self._total.settle()
        self._total = _Total(self.flat, step)
        return self._total

    def add(self, value: float | Tensor, *, last: bool) -> float:
        """Take the weight of a virtual rank; post the sum if it is this rank's last one."""
        try:
            weight = float(value)
        except (TypeError, ValueError, RuntimeError):
            weight = math.nan
        if not (math.isfinite(weight) and weight >= 0):
            raise UsageError(f"part.weight must be a finite number from 0 on, not {value}")
        with torch.no_grad():
            self.flat.fill_(weight)
        if last:
            self._total.post(self._post)
        return weight


class _Total:
    """The sum of the weights of one step."""

    def __init__(self, flat: Tensor, step: int) -> None:
        self._flat, self._step = flat, step
        self._pending: Pending | None = None
        self._value: float | None = None

    def post(self, post: "Callable[[int], Pending]") -> None:
        self._pending = post(0)

    def done(self) -> bool:
        return self._value is not None or self._pending is None or self._pending.done()

    def wait(self) -> float:
        """Block until the sum has come, and return it."""
        self.settle()
        if self._value is None:
            raise UsageError(
                f"the gradients of step {self._step} are divided by the sum of all weights: set "
                "part.weight before they are read"
            )
        if self._value == 0:
            raise UsageError(f"the weights of all virtual ranks of step {self._step} are 0")
        return self._value

    def settle(self) -> None:
        if self._value is None and self._pending is not None:
            self._pending.wait()
            self._value = float(self._flat)
