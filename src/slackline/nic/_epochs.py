"""The epochs of an engine's groups: a number may stand for one group at a time.

Every frame carries the epoch of its group, 32 bits drawn from the group's secret. A number that is
drawn again while an older group with it is open, or while frames of that group may still arrive,
would mix the two groups up.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

__all__ = ["Epochs"]


class UsesEpochs(Protocol):
    """The method of the engine that the table calls."""

    def uses_epoch(self, epoch: int) -> bool: ...


class Epochs:
    """The epochs that are in use on an engine: those the engine knows, and those of openings.

    Any thread may call. `engine` is to be set as soon as there is one.
    """

    def __init__(self) -> None:
        self.engine: UsesEpochs | None = None
        self._lock = threading.Lock()
        self._reserved = Counter[int]()

    @contextmanager
    def opening(self) -> Iterator[Callable[[Sequence[int]], int]]:
        """Provide a function to reserve the candidates for the epoch of a group that is opened.

        The function returns a bit mask of the candidates that the group cannot have, since another
        group has them; bit i stands for candidate i. The candidates stay reserved until the end of
        the context, by which the engine knows the one that was chosen.
        """
        mine = list[int]()

        def reserve(candidates: Sequence[int]) -> int:
            with self._lock:
                taken = sum(
                    1 << bit
                    for bit, epoch in enumerate(candidates)
                    if epoch in self._reserved
                    or (self.engine is not None and self.engine.uses_epoch(epoch))
                )
                mine.extend(candidates)
                self._reserved.update(candidates)
            return taken

        try:
            yield reserve
        finally:
            with self._lock:
                self._reserved -= Counter(mine)
