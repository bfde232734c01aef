"""The limited set of unauthenticated connections of a listener, and the log of refused ones."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import struct
from collections.abc import Coroutine
from functools import partial
from typing import Any

from slackline.nic.connect._connection_manager import ConnectionManager
from slackline.nic.connect._handshake_channel import HandshakeChannel

__all__ = ["Admissions", "Refusals", "foreign_user"]

_MOST = 256
_FEWEST = 8
_TOLD_ALL, _TOLD_EACH = 10, 100
_CREDENTIALS = struct.Struct("3i")
"""struct ucred: the process, user and group at the other end of a Unix socket (unix(7))."""


class Admissions:
    """The unauthenticated connections of one listener, each with a task that admits it.

    At most 256 are open at a time, and at least half of the descriptors that RLIMIT_NOFILE allows
    are left to the program, beyond eight connections. A new connection displaces the oldest, which
    is closed and whose task is cancelled: peers that know the secret need milliseconds and get in.
    All methods must be called on the event loop's thread (ConnectionManager).
    """

    def __init__(self) -> None:
        self._open: dict[asyncio.Task[None], HandshakeChannel] = {}

    def __len__(self) -> int:
        return len(self._open)

    def admit(
        self, manager: ConnectionManager, channel: HandshakeChannel, work: Coroutine[Any, Any, None]
    ) -> list[HandshakeChannel]:
        """Run the admission `work` of a new connection, which owns the channel `channel`.

        Returns the channels of the connections that the new one displaces; they are closed soon.
        """
        limit = _MOST
        if channel.sock.fileno() >= _half_of_descriptors():
            # The kernel gives the lowest free number, so half of the descriptors are in use.
            limit = max(_FEWEST, len(self._open) - 1)
        displaced = []
        while len(self._open) >= limit and (oldest := self.displace()):
            displaced += oldest
        task = manager.spawn(work)
        self._open[task] = channel
        task.add_done_callback(partial(self._gone, channel))
        return displaced

    def displace(self) -> list[HandshakeChannel]:
        """Cancel the oldest admission, and return its channel; return [] if there is none.

        A connection whose other end has authenticated itself is not displaced: the other end may
        already use it.
        """
        task = next((task for task, each in self._open.items() if not each.proven), None)
        if task is None:
            return []
        channel = self._open.pop(task)
        task.cancel()
        return [channel]

    def _gone(self, channel: HandshakeChannel, task: asyncio.Task[None]) -> None:
        """Forget an ended admission and close its connection if the task was cancelled."""
        if task.cancelled():
            channel.close()  # A task cancelled before its start closes nothing.
        self._open.pop(task, None)  # A newer connection may have displaced it.


class Refusals:
    """The count and the log of refused connections: ten are logged, then every hundredth."""

    def __init__(self, log: logging.Logger, said: str) -> None:
        """Create a log whose lines are `said`, with %s for the address and %s for the reason."""
        self._log, self._said = log, said
        self.count = 0

    def add(self, sock: socket.socket, why: str) -> None:
        """Count a refused connection, and log it with the reason if it is its turn."""
        try:
            where: object = sock.getpeername() or "a Unix socket"
        except OSError:
            where = "a socket that is gone"
        self.add_from(where, why)

    def add_from(self, where: object, why: str) -> None:
        """Count a refused connection from an address, and log it if it is its turn."""
        self.count += 1
        if self.count <= _TOLD_ALL or self.count % _TOLD_EACH == 0:
            self._log.warning(self._said, where, why)


def foreign_user(sock: socket.socket) -> int | None:
    """Return the user at the other end of a Unix socket if it is not this process's, else None.

    The kernel vouches for the answer. Returns None for other sockets.
    """
    if sock.family != socket.AF_UNIX:
        return None
    told = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(told)
    return None if user == os.geteuid() else int(user)


def _half_of_descriptors() -> float:
    """Return half of the number of descriptors that this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return float("inf") if soft == resource.RLIM_INFINITY else soft // 2
