"""The listener of an engine: its listening sockets, and the admission of connections.

A connecting engine has five seconds to send a complete HELLO frame that names an expected engine;
otherwise the connection is closed. Each connection has a task of its own and delays no other. A
HELLO of a group that this rank does not know yet waits, because the peer may only have finished its
rendezvous earlier.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from slackline.errors import SlacklineError
from slackline.nic._addresses import Interface, family_of, socket_address
from slackline.nic._guests import Guests
from slackline.nic._keeper import Keeper
from slackline.nic._line import Line, ready
from slackline.nic._messages import Hello, parse

__all__ = ["Door", "Greet", "unix_name"]

_log = logging.getLogger("slackline.nic")

_BACKLOG = 1024
_PATIENCE_S = 5.0
_BREATH_S = 0.1
_TOLD_ALL, _TOLD_EACH = 10, 100

Greet = Callable[[Line, int, bytes, Hello], Awaitable[bool]]
"""A function greet(line, job code, payload, parsed payload) that completes a handshake. The result
says whether the connection was expected; if so, the function owns the channel `line`. Raises
SlacklineError when the other end fails to authenticate itself."""


class Door:
    """The listener of an engine: a TCP port on each of its addresses, and an abstract Unix socket.

    An abstract name needs no file, so nothing remains after the process ends.
    """

    def __init__(self, engine: str, interfaces: Sequence[Interface]) -> None:
        """Listen on the addresses of `interfaces` and on no other; raise OSError if one is gone."""
        self.unix_name = unix_name(engine)
        self.interfaces: tuple[Interface, ...] = ()
        """The addresses with their ports. A change replaces the tuple."""
        self.published: tuple[Interface, ...] = ()
        """The addresses that the last rendezvous has told the other ranks."""
        self._accepts: Callable[[socket.socket], None] | None = None
        """The function that begins to accept on a socket; None before `open`."""
        self._ports: dict[tuple[str, int], int] = {}
        """The port of each address that was ever listened on, by address and scope."""
        self._news = asyncio.Event()
        self._guests = Guests()
        self._sockets: list[socket.socket] = []
        self.strangers = 0
        try:
            unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._sockets.append(unix)
            unix.bind(self.unix_name)
            unix.listen(_BACKLOG)
            self.interfaces = tuple(map(self._listened, interfaces))
        except BaseException:
            self.close()
            raise

    def open(self, keeper: Keeper, greet: Greet) -> None:
        """Begin to accept connections. Must be called on the event loop's thread (Keeper)."""

        def accept(sock: socket.socket) -> None:
            sock.setblocking(False)
            keeper.spawn(self._accept(keeper, sock, greet))

        self._accepts = accept
        for sock in self._sockets:
            accept(sock)

    def update(self, kept: Sequence[Interface], found: Sequence[Interface]) -> bool:
        """Listen also on those addresses in `found` that are new; return whether any has changed.

        `kept` are those of `interfaces` that the host still has. Must be called on the event loop's
        thread.
        """
        known = {(each.address, each.scope) for each in kept}
        added = []
        for each in found:
            if (each.address, each.scope) in known:
                continue
            try:
                added.append(self._listened(each))
            except OSError as error:  # The address has gone again meanwhile.
                _log.warning("cannot listen at %s of %s: %s", each.address, each.name, error)
        changed = bool(added) or len(kept) < len(self.interfaces)
        self.interfaces = (*kept, *added)
        return changed

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

    def _listened(self, interface: Interface) -> Interface:
        """Listen on a free TCP port of an address; return the interface with the port.

        An address that has come back has its earlier port, which has been open all the time.
        """
        where = interface.address, interface.scope
        if where not in self._ports:
            sock = socket.socket(family_of(interface.address), socket.SOCK_STREAM)
            self._sockets.append(sock)
            sock.bind(socket_address(interface.address, 0, interface.scope))
            sock.listen(_BACKLOG)
            self._ports[where] = sock.getsockname()[1]
            if self._accepts is not None:
                self._accepts(sock)
        return replace(interface, port=self._ports[where])

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
            line = Line(caller)
            self._guests.admit(keeper, line, self._welcome(line, greet))

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
