"""The listener of an engine: its listening sockets, and the admission of connections.

A connecting engine has five seconds to send a complete HELLO frame that names an expected engine;
otherwise the connection is closed. Each connection has a task of its own and delays no other. A
HELLO of a group that this rank does not know yet waits, because the peer may only have finished its
rendezvous earlier.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from slackline.errors import SlacklineError
from slackline.nic._keeper import Keeper
from slackline.nic._line import Line, ready
from slackline.nic._messages import Hello, parse
from slackline.nic._paths import Interface

__all__ = ["Door", "Greet", "unix_name"]

_log = logging.getLogger("slackline.nic")

_BACKLOG = 1024
_PATIENCE_S = 5.0
_MOST_STRANGERS = 256
_BREATH_S = 0.1
_TOLD_ALL, _TOLD_EACH = 10, 100

Greet = Callable[[Line, int, bytes, Hello], Awaitable[bool]]
"""A function greet(line, job code, payload, parsed payload) that completes a handshake. The result
says whether the connection was expected; if so, the function owns the channel `line`. Raises
SlacklineError when the other end fails to authenticate itself."""


class Door:
    """The listener of an engine: TCP ports and an abstract Unix socket.

    An abstract name needs no file, so nothing remains after the process ends.
    """

    def __init__(self, engine: str, interfaces: Sequence[Interface], *, chosen: bool) -> None:
        """Listen on `interfaces` if the user has chosen them, else on every address of the host."""
        self.unix_name = unix_name(engine)
        self._news = asyncio.Event()
        self._guests: deque[asyncio.Task[None]] = deque()
        self._sockets: list[socket.socket] = []
        self.strangers = 0
        try:
            unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._sockets.append(unix)
            unix.bind(self.unix_name)
            unix.listen(_BACKLOG)
            everywhere = 0 if chosen else self._listen_at("")
            self.interfaces = tuple(
                replace(each, port=everywhere or self._listen_at(each.address))
                for each in interfaces
            )
        except BaseException:
            self.close()
            raise

    def open(self, keeper: Keeper, greet: Greet) -> None:
        """Begin to accept connections. Must be called on the event loop's thread (Keeper)."""
        for sock in self._sockets:
            sock.setblocking(False)
            keeper.spawn(self._accept(keeper, sock, greet))

    def announce(self) -> None:
        """Check waiting connections again, because a new group may expect them.

        Must be called on the event loop's thread.
        """
        self._news.set()
        self._news = asyncio.Event()

    def close(self) -> None:
        """Close the listening sockets."""
        for sock in self._sockets:
            sock.close()

    def _listen_at(self, address: str) -> int:
        """Listen on a free TCP port of an address and return the port."""
        sock = socket.create_server((address, 0), backlog=_BACKLOG)
        self._sockets.append(sock)
        port: int = sock.getsockname()[1]
        return port

    async def _accept(self, keeper: Keeper, listening: socket.socket, greet: Greet) -> None:
        """Accept connections for ever, and run the admission of each as a task of its own."""
        while True:
            await ready(listening)
            try:
                caller, _ = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                continue
            except OSError as error:
                _log.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(_BREATH_S)  # Usually no descriptors are left.
                continue
            if len(self._guests) >= _MOST_STRANGERS:
                self._guests.popleft().cancel()
            line = Line(caller)
            guest = keeper.spawn(self._welcome(line, greet))
            self._guests.append(guest)
            guest.add_done_callback(partial(self._gone, line))

    def _gone(self, line: Line, guest: asyncio.Task[None]) -> None:
        """Forget an ended admission task and close its connection if the task was cancelled."""
        if guest.cancelled():
            line.close()  # A task cancelled before its start closes nothing.
        with contextlib.suppress(ValueError):  # A newer connection may have displaced it.
            self._guests.remove(guest)

    async def _welcome(self, line: Line, greet: Greet) -> None:
        """Read a connection's HELLO and pass it to `greet` until it is expected or time is up."""
        taken = False
        why = "it did not send a HELLO in time"
        try:
            async with asyncio.timeout(_PATIENCE_S):
                job, said = await line.hear()
                hello = parse(Hello, said.payload)
                why = "it was not expected"
                while True:
                    news = self._news
                    if taken := await greet(line, job, said.payload, hello):
                        return
                    await news.wait()
        except TimeoutError:
            self._turned_away(line, why)
        except (OSError, SlacklineError) as error:
            if not line.left:  # A liveness connect closes at once and is no error.
                self._turned_away(line, str(error))
        finally:
            if not taken:
                line.close()

    def _turned_away(self, line: Line, why: str) -> None:
        """Count a refused connection and log it; only every hundredth is logged after ten."""
        self.strangers += 1
        if self.strangers > _TOLD_ALL and self.strangers % _TOLD_EACH:
            return
        try:
            where = line.sock.getpeername() or "a Unix socket"
        except OSError:
            where = "a socket that is gone"
        _log.warning("turned away a stranger from %s: %s", where, why)


def unix_name(engine: str) -> str:
    """Return the abstract Unix name that the engine with this identity listens on."""
    return f"\0slackline-{engine}"
