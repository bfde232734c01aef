"""The listener of an engine: its listening sockets, and the admission of connections.

A process of another user that connects to the Unix socket is refused at once. A connecting engine
has five seconds to send a complete HELLO frame that names an expected engine; otherwise the
connection is closed. Each connection has a task of its own and delays no other. A
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
from slackline.nic.connect._addresses import Interface, family_of, socket_address
from slackline.nic.connect._admissions import Admissions, Refusals, foreign_user
from slackline.nic.connect._connection_manager import ConnectionManager
from slackline.nic.connect._forks import closed_in_children
from slackline.nic.connect._handshake_channel import HandshakeChannel, lacks_resources, ready
from slackline.nic.connect._messages import Hello, parse

__all__ = ["Greet", "Listener", "unix_name"]

_log = logging.getLogger("slackline.nic")

_BACKLOG = 1024
_PATIENCE_S = 5.0
_BREATH_S = 0.1

Greet = Callable[[HandshakeChannel, int, bytes, Hello], Awaitable[bool]]
"""A function greet(channel, job, payload, parsed payload) that completes a handshake; `job` is the
field of that name in the header of the first frame. The result says whether the connection was
expected; if so, the function owns the channel. Raises SlacklineError when the other end fails to
authenticate itself."""


class Listener:
    """The listener of an engine: a TCP port on each of its addresses, and an abstract Unix socket.

    An abstract name needs no file, so nothing remains after the process ends.
    """

    def __init__(self, engine: str, interfaces: Sequence[Interface]) -> None:
        """Listen on the addresses of `interfaces` only; raise OSError if an address is gone."""
        self.unix_name = unix_name(engine)
        self.interfaces: tuple[Interface, ...] = ()
        """The addresses with their ports. A change replaces the tuple."""
        self.published: tuple[Interface, ...] = ()
        """The addresses that the last rendezvous has told the other ranks."""
        self._accepts: Callable[[socket.socket], None] | None = None
        """The function that begins to accept on a socket; None before `open`."""
        self._ports: dict[tuple[str, int], int] = {}
        """The port of each address that was ever listened on, by address and scope."""
        self._announced = asyncio.Event()
        self._admissions = Admissions()
        self._refusals = Refusals(_log, "refused an unauthenticated peer from %s: %s")
        self._failures = Refusals(_log, "a connection from %s could not become a rail: %s")
        self._sockets: list[socket.socket] = []
        try:
            unix = closed_in_children(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            self._sockets.append(unix)
            unix.bind(self.unix_name)
            unix.listen(_BACKLOG)
            self.interfaces = tuple(map(self._listened, interfaces))
        except BaseException:
            self.close()
            raise

    def open(
        self,
        manager: ConnectionManager,
        greet: Greet,
        failed: Callable[[OSError], None] = lambda error: None,
    ) -> None:
        """Begin to accept connections. Must be called on the manager's event loop.

        `failed` gets each error of an attempt to accept; usually no descriptors are left.
        """

        def accept(sock: socket.socket) -> None:
            sock.setblocking(False)
            manager.spawn(self._accept(manager, sock, greet, failed))

        self._accepts = accept
        for sock in self._sockets:
            accept(sock)

    def update(self, kept: Sequence[Interface], found: Sequence[Interface]) -> bool:
        """Listen also on the new addresses in `found`; return whether any address has changed.

        `kept` are the members of `interfaces` that the host still has. Must be called on the event
        loop's thread.
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
        self._announced.set()
        self._announced = asyncio.Event()

    def close(self) -> None:
        """Close the listening sockets."""
        self._accepts = None
        for sock in self._sockets:
            sock.close()

    def _listened(self, interface: Interface) -> Interface:
        """Listen on a free TCP port of an address; return the interface with the port.

        An address that has come back keeps its earlier port, whose socket has stayed open
        meanwhile.
        """
        where = interface.address, interface.scope
        if where not in self._ports:
            sock = closed_in_children(
                socket.socket(family_of(interface.address), socket.SOCK_STREAM)
            )
            self._sockets.append(sock)
            sock.bind(socket_address(interface.address, 0, interface.scope))
            sock.listen(_BACKLOG)
            self._ports[where] = sock.getsockname()[1]
            if self._accepts is not None:
                self._accepts(sock)
        return replace(interface, port=self._ports[where])

    async def _accept(
        self,
        manager: ConnectionManager,
        listening: socket.socket,
        greet: Greet,
        failed: Callable[[OSError], None],
    ) -> None:
        """Accept connections for ever, and run the admission of each as a task of its own."""
        while True:
            await ready(listening)
            try:
                caller, _ = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                continue
            except OSError as error:  # Usual cause: no file descriptors are left.
                displaced = self._admissions.displace()
                for channel in displaced:
                    self._refusals.add(channel.sock, f"a newer one meets: {error.strerror}")
                if not displaced:
                    failed(error)
                    self._failures.add_from(
                        "an address that is not known yet", f"it is not accepted: {error.strerror}"
                    )
                await asyncio.sleep(_BREATH_S)
                continue
            if (user := foreign_user(caller)) is not None:
                self._refusals.add(caller, f"its process belongs to user {user}, not to this one's")
                caller.close()
                continue
            channel = HandshakeChannel(caller, _PATIENCE_S)
            work = self._welcome(channel, greet)
            for oldest in self._admissions.admit(manager, channel, work):
                self._refusals.add(oldest.sock, "it was the oldest of too many that wait")

    async def _welcome(self, channel: HandshakeChannel, greet: Greet) -> None:
        """Read a connection's HELLO and call `greet` until the HELLO is expected or time is up."""
        taken = False
        told, channel.late = channel.late, "it did not send a HELLO in time"
        try:
            job, message = await channel.receive()
            channel.late = told
            hello = parse(Hello, message.payload)
            while True:
                announced = self._announced
                if taken := await greet(channel, job, message.payload, hello):
                    return
                async with asyncio.timeout_at(channel.until_s):
                    await announced.wait()
        except TimeoutError:
            self._refusals.add(channel.sock, "it was not expected")
        except (OSError, SlacklineError, MemoryError) as error:
            if channel.proven or lacks_resources(error):
                self._failures.add(channel.sock, str(error) or "no memory is left")
            elif not channel.left:  # A liveness connect closes at once and is no error.
                self._refusals.add(channel.sock, str(error))
        finally:
            if not taken:
                channel.close()


def unix_name(engine: str) -> str:
    """Return the abstract Unix name that the engine with this identity listens on."""
    return f"\0slackline-{engine}"
