"""The admission of the connections that come to an engine's listening sockets.

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
from collections.abc import Awaitable, Callable

from slackline.errors import SlacklineError
from slackline.nic.connect._admissions import Admissions, Refusals, foreign_user
from slackline.nic.connect._connection_manager import ConnectionManager
from slackline.nic.connect._handshake_channel import HandshakeChannel
from slackline.nic.connect._messages import Hello, parse
from slackline.nic.connect._paths import LongPacketsLostError
from slackline.nic.connect._sockets import NoPortError, lacks_resources, ready

__all__ = ["Acceptor", "Greet"]

_log = logging.getLogger("slackline.nic")

_PATIENCE_S = 5.0
_BREATH_S = 0.1

Greet = Callable[[HandshakeChannel, int, bytes, Hello], Awaitable[bool]]
"""A function greet(channel, job, payload, parsed payload) that completes a handshake; `job` is the
field of that name in the header of the first frame. The result says whether the connection was
expected; if so, the function owns the channel. Raises SlacklineError when the other end fails to
authenticate itself."""


class Acceptor:
    """The admission of connections to listening sockets.

    All methods must be called on the event loop's thread (ConnectionManager).
    """

    def __init__(
        self, manager: ConnectionManager, greet: Greet, failed: Callable[[OSError], None]
    ) -> None:
        """Admit connections by `greet`; `failed` gets each error of an attempt to accept."""
        self._manager, self._greet, self._failed = manager, greet, failed
        self._announced = asyncio.Event()
        self.admissions = Admissions()
        self.refusals = Refusals(_log, "refused an unauthenticated peer from %s: %s")
        self._failures = Refusals(_log, "a connection from %s could not become a rail: %s")

    def accept(self, listening: socket.socket) -> None:
        """Begin to accept the connections of a listening socket."""
        listening.setblocking(False)
        self._manager.spawn(self._accept(listening))

    def announce(self) -> None:
        """Check waiting connections again, because a new group may expect them."""
        self._announced.set()
        self._announced = asyncio.Event()

    async def _accept(self, listening: socket.socket) -> None:
        """Accept connections for ever, and run the admission of each as a task of its own."""
        while True:
            await ready(listening)
            try:
                caller, _ = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                continue
            except OSError as error:  # Usual cause: no file descriptors are left.
                displaced = self.admissions.displace()
                for channel in displaced:
                    self.refusals.add(channel.sock, f"a newer one meets: {error.strerror}")
                if not displaced:
                    self._failed(error)
                    self._failures.add_from(
                        "an address that is not known yet", f"it is not accepted: {error.strerror}"
                    )
                await asyncio.sleep(_BREATH_S)
                continue
            if (user := foreign_user(caller)) is not None:
                self.refusals.add(caller, f"its process belongs to user {user}, not to this one's")
                caller.close()
                continue
            channel = HandshakeChannel(caller, _PATIENCE_S)
            work = self._welcome(channel)
            for oldest in self.admissions.admit(self._manager, channel, work):
                self.refusals.add(oldest.sock, "it was the oldest of too many that wait")

    async def _welcome(self, channel: HandshakeChannel) -> None:
        """Read a connection's HELLO and greet the peer until it is expected or time is up."""
        taken = False
        told, channel.late = channel.late, "it did not send a HELLO in time"
        try:
            job, message = await channel.receive()
            channel.late = told
            hello = parse(Hello, message.payload)
            while True:
                announced = self._announced
                if taken := await self._greet(channel, job, message.payload, hello):
                    return
                async with asyncio.timeout_at(channel.until_s):
                    await announced.wait()
        except TimeoutError:
            self.refusals.add(channel.sock, "it was not expected")
        except (OSError, SlacklineError, MemoryError) as error:
            known = channel.proven or isinstance(error, LongPacketsLostError | NoPortError)
            if known or lacks_resources(error):
                self._failures.add(channel.sock, str(error) or "no memory is left")
            elif not channel.left:  # A liveness connect closes at once and is no error.
                self.refusals.add(channel.sock, str(error))
        finally:
            if not taken:
                channel.close()
