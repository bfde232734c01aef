"""The connections of a listener that have not authenticated themselves yet: a limited number."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine
from functools import partial
from typing import Any

from slackline.nic._keeper import Keeper
from slackline.nic._line import Line

__all__ = ["Guests"]

_MOST = 256


class Guests:
    """The unauthenticated connections of one listener, each with a task that admits it.

    At most 256 are open at a time: a new one displaces the oldest, whose task is cancelled and
    whose connection is closed. All methods must be called on the event loop's thread (Keeper).
    """

    def __init__(self) -> None:
        self._tasks: deque[asyncio.Task[None]] = deque()

    def __len__(self) -> int:
        return len(self._tasks)

    def admit(self, keeper: Keeper, line: Line, work: Coroutine[Any, Any, None]) -> None:
        """Run the admission `work` of a new connection, which owns the channel `line`."""
        if len(self._tasks) >= _MOST:
            self._tasks.popleft().cancel()
        task = keeper.spawn(work)
        self._tasks.append(task)
        task.add_done_callback(partial(self._gone, line))

    def _gone(self, line: Line, task: asyncio.Task[None]) -> None:
        """Forget an ended admission and close its connection if the task was cancelled."""
        if task.cancelled():
            line.close()  # A task cancelled before its start closes nothing.
        with contextlib.suppress(ValueError):  # A newer connection may have displaced it.
            self._tasks.remove(task)
