"""Average a few figures over the ranks while training goes on."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from slackline.overlap._exchange import Exchange, Pending

__all__ = ["Average", "RankAverages"]

Average = Callable[[Sequence[float]], Callable[[], list[float]]]
"""Posts this rank's figures; the function that it returns waits for their averages over the
ranks."""


class RankAverages:
    """An Average by the exchange's reductions, one at a time."""

    def __init__(self, exchange: Exchange, *, key: int) -> None:
        """No other reduction has this key while one is under way."""
        self._exchange = exchange
        self._key = key
        self._memory: Tensor | None = None
        self._pending: Pending | None = None

    def __call__(self, figures: Sequence[float]) -> Callable[[], list[float]]:
        self.close()  # averages that were never asked for may still be under way
        if self._memory is None or self._memory.numel() < len(figures):
            (self._memory,) = self._exchange.allocate([(len(figures), torch.float32)])
        flat = self._memory[: len(figures)]
        flat.copy_(torch.tensor(figures))
        self._pending = pending = self._exchange.reduction(self._key, flat, average=True)(0)

        def averages() -> list[float]:
            pending.wait()
            found: list[float] = flat.tolist()
            return found

        return averages

    def done(self) -> bool:
        """Whether `close` would not block."""
        return self._pending is None or self._pending.done()

    def close(self) -> None:
        """Wait until nothing uses the exchange's memory."""
        if self._pending is not None:
            self._pending.wait()
