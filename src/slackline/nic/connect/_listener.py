"""The listener of an engine: its listening sockets.

Connections wait in the kernel until `open`, which the first group of several ranks calls.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from slackline.nic.connect._addresses import Interface, family_of, socket_address
from slackline.nic.connect._sockets import NoPortError, bind_to_free_port, closed_in_children

if TYPE_CHECKING:
    from slackline.nic.connect._acceptor import Acceptor, Greet
    from slackline.nic.connect._connection_manager import ConnectionManager

__all__ = ["Listener", "unix_name"]

_log = logging.getLogger("slackline.nic")

_BACKLOG = 1024


class Listener:
    """The listener of an engine: a TCP port on each of its addresses, and an abstract Unix socket.

    An abstract name needs no file, so nothing remains after the process ends.
    """

    def __init__(self, engine: str, interfaces: Sequence[Interface]) -> None:
        """Listen on the addresses of `interfaces` only.

        Raises OSError if an address is gone, and NoPortError if no port is free.
        """
        self.unix_name = unix_name(engine)
        self.interfaces: tuple[Interface, ...] = ()
        """The addresses with their ports. A change replaces the tuple."""
        self.published: tuple[Interface, ...] = ()
        """The addresses that the last rendezvous has told the other ranks."""
        self._acceptor: Acceptor | None = None
        """The part that accepts connections; None before `open`."""
        self._ports: dict[tuple[str, int], int] = {}
        """The port of each address that was ever listened on, by address and scope."""
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
        """Begin to accept connections; a further call does nothing.

        Must be called on the manager's event loop.
        `failed` gets each error of an attempt to accept; usually no descriptors are left.
        """
        if self._acceptor is not None:
            return
        # Here and not above: a group of one rank accepts no connection, and needs no handshake.
        from slackline.nic.connect._acceptor import Acceptor

        self._acceptor = Acceptor(manager, greet, failed)
        for sock in self._sockets:
            self._acceptor.accept(sock)

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
            except (OSError, NoPortError) as error:  # The address may have gone again meanwhile.
                _log.warning("cannot listen at %s of %s: %s", each.address, each.name, error)
        changed = bool(added) or len(kept) < len(self.interfaces)
        self.interfaces = (*kept, *added)
        return changed

    def announce(self) -> None:
        """Check waiting connections again, because a new group may expect them.

        Must be called on the event loop's thread.
        """
        if self._acceptor is not None:
            self._acceptor.announce()

    def close(self) -> None:
        """Close the listening sockets."""
        self._acceptor = None
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
            bind_to_free_port(sock, socket_address(interface.address, 0, interface.scope))
            sock.listen(_BACKLOG)
            self._ports[where] = sock.getsockname()[1]
            if self._acceptor is not None:
                self._acceptor.accept(sock)
        return replace(interface, port=self._ports[where])


def unix_name(engine: str) -> str:
    """Return the abstract Unix name that the engine with this identity listens on."""
    return f"\0slackline-{engine}"
