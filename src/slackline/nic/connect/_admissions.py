"""The limited set of unauthenticated connections of a listener."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine
from functools import partial
from typing import Any

from slackline.nic.connect._connection_manager import ConnectionManager
from slackline.nic.connect._handshake_channel import HandshakeChannel

__all__ = ["Admissions"]

_MOST = 256


class Admissions:
    """The unauthenticated connections of one listener, each with a task that admits it.

    At most 256 are open at a time: a new connection displaces the oldest, which is closed and whose
    task is cancelled. All methods must be called on the event loop's thread (ConnectionManager).
    """

    def __init__(self) -> None:
        self._tasks: deque[asyncio.Task[None]] = deque()

    def __len__(self) -> int:
        return len(self._tasks)

    def admit(
        self, manager: ConnectionManager, channel: HandshakeChannel, work: Coroutine[Any, Any, None]
    ) -> None:
        """Run the admission `work` of a new connection, which owns the channel `channel`."""
        if len(self._tasks) >= _MOST:
            self._tasks.popleft().cancel()
        task = manager.spawn(work)
        self._tasks.append(task)
        task.add_done_callback(partial(self._gone, channel))

    def _gone(self, channel: HandshakeChannel, task: asyncio.Task[None]) -> None:
        """Forget an ended admission and close its connection if the task was cancelled."""
        if task.cancelled():
            channel.close()  # A task cancelled before its start closes nothing.
        with contextlib.suppress(ValueError):  # A newer connection may have displaced it.
            self._tasks.remove(task)
