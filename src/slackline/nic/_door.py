"""Where callers knock: the listening sockets of an engine, and who is let in.

A caller has some seconds to say a whole HELLO that names an engine we expect. Who does not is
turned away; each has a task of its own and delays nobody. A HELLO of a meeting that this rank has
not heard of yet waits: the caller may just have been quicker.
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
"""greet(line, job code, payload, what it says) -> whether the caller was expected; raises
SlacklineError when it cannot prove who it is. Takes the line over if it returns True."""


class Door:
    """The engine's ears: TCP ports, and an abstract Unix name (which leaves nothing behind)."""

    def __init__(self, engine: str, interfaces: Sequence[Interface], *, chosen: bool) -> None:
        """Listen on `interfaces`; on every address of the host unless the user has chosen them."""
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
        """Begin to accept callers. On the keeper's thread."""
        for sock in self._sockets:
            sock.setblocking(False)
            keeper.spawn(self._accept(keeper, sock, greet))

    def announce(self) -> None:
        """Callers that were not expected before may be now. On the keeper's thread."""
        self._news.set()
        self._news = asyncio.Event()

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()

    def _listen_at(self, address: str) -> int:
        sock = socket.create_server((address, 0), backlog=_BACKLOG)
        self._sockets.append(sock)
        port: int = sock.getsockname()[1]
        return port

    async def _accept(self, keeper: Keeper, listening: socket.socket, greet: Greet) -> None:
        while True:
            await ready(listening)
            try:
                caller, _ = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                continue
            except OSError as error:
                _log.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(_BREATH_S)  # most likely there are no descriptors left
                continue
            if len(self._guests) >= _MOST_STRANGERS:
                self._guests.popleft().cancel()
            line = Line(caller)
            guest = keeper.spawn(self._welcome(line, greet))
            self._guests.append(guest)
            guest.add_done_callback(partial(self._gone, line))

    def _gone(self, line: Line, guest: asyncio.Task[None]) -> None:
        if guest.cancelled():
            line.close()  # it may have been cancelled before it began
        with contextlib.suppress(ValueError):  # it was pushed out
            self._guests.remove(guest)

    async def _welcome(self, line: Line, greet: Greet) -> None:
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
            if not line.left:  # a peer that only wants to know that somebody is here, or ends
                self._turned_away(line, str(error))
        finally:
            if not taken:
                line.close()

    def _turned_away(self, line: Line, why: str) -> None:
        self.strangers += 1
        if self.strangers > _TOLD_ALL and self.strangers % _TOLD_EACH:
            return
        try:
            where = line.sock.getpeername() or "a Unix socket"
        except OSError:
            where = "a socket that is gone"
        _log.warning("turned away a stranger from %s: %s", where, why)


def unix_name(engine: str) -> str:
    return f"\0slackline-{engine}"
