"""Averages of a few figures over the ranks, computed in the background of training."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from slackline.overlap.exchange._interface import Exchange
from slackline.overlap.exchange._pending import Pending

__all__ = ["Average", "RankAverages"]

Average = Callable[[Sequence[float]], Callable[[], list[float]]]
"""A function that posts this rank's figures and returns a function that waits for the averages
over the ranks."""


class RankAverages:
    """An averager of figures over the ranks, which runs one reduction of the exchange at a time."""

    def __init__(self, exchange: Exchange, *, key: int) -> None:
        """Create an averager whose reductions use `key`, which no other reduction may use."""
        self._exchange = exchange
        self._key = key
        self._memory: Tensor | None = None
        self._pending: Pending | None = None

    def __call__(self, figures: Sequence[float]) -> Callable[[], list[float]]:
        self.close()  # a reduction whose averages were never read may still be in flight
        if self._memory is None or self._memory.numel() < len(figures):
            (self._memory,) = self._exchange.allocate([(len(figures), torch.float32)])
        flat = self._memory[: len(figures)]
        flat.copy_(torch.tensor(figures, dtype=flat.dtype, device="cpu"))
        post = self._exchange.reduction(self._key, flat, average=True, exact=True)
        self._pending = pending = post(0)

        def averages() -> list[float]:
            pending.wait()
            found: list[float] = flat.tolist()
            return found

        return averages

    def done(self) -> bool:
        """Return whether no reduction of figures is in flight, so that `close` returns at once."""
        return self._pending is None or self._pending.done()

    def close(self) -> None:
        """Block until no reduction of figures is in flight, so that its memory may be freed."""
        if self._pending is not None:
            self._pending.wait()
