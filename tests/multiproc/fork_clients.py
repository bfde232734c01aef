"""Clients of the processes that fork ranks, and the loop that reads their requests."""

import ctypes
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

__all__ = ["MOST_BYTES", "Client", "Server", "end_with"]

MOST_BYTES = 1 << 17
"""The bytes that one call receives at most, more than a request has."""
_SET_PARENT_DEATH_SIGNAL = 1  # The value is prctl's PR_SET_PDEATHSIG.


def end_with(parent: int) -> None:
    """Let the kernel kill this forked process when its parent ends."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)  # The parent ended before prctl took effect.


@dataclass(eq=False)
class Client:
    """A connected pytest worker, its request as far as it has arrived, and its running job."""

    connection: socket.socket
    request: bytes = b""
    output: int = -1
    """The descriptor that the ranks of the next job write to."""
    folder: str = ""
    size: int = 0
    deadline_s: float = 0.0
    """The time at which the ranks are killed, on the monotonic clock."""
    ranks: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The process id and the process descriptor of each rank that has not been reaped."""
    ends: dict[int, int] = field(default_factory=dict)
    """The exit codes of the ranks that have ended by themselves."""


class Server:
    """A loop of one thread that reads the requests of clients until `stop` is called."""

    def __init__(self) -> None:
        self.clients: set[Client] = set()
        self._selector = selectors.DefaultSelector()
        self._serving = True

    def serve(self) -> None:
        """Serve until `stop` is called."""
        while self._serving:
            for key, _ in self._selector.select(self.patience_s()):
                # An event before this one may have closed this descriptor.
                if self._selector.get_map().get(key.fd) is key:
                    key.data()
            self.expire()

    def stop(self) -> None:
        self._serving = False

    def watch(self, source: int | socket.socket, react: Callable[[], None]) -> None:
        """Call `react` whenever the source can be read."""
        self._selector.register(source, selectors.EVENT_READ, react)

    def unwatch(self, source: int | socket.socket) -> None:
        self._selector.unregister(source)

    def admit(self, client: Client) -> None:
        """Read the client's requests from now on."""
        self.clients.add(client)
        self.watch(client.connection, partial(self._read, client))

    def release(self, client: Client) -> None:
        """Forget a client and close its descriptors."""
        self.unwatch(client.connection)
        client.connection.close()
        if client.output >= 0:
            os.close(client.output)
        self.clients.remove(client)

    def leave(self, *kept: int) -> None:
        """Close the server's descriptors in a forked process, except the standard ones and `kept`.

        Otherwise a disconnected client would stay connected to that process. A socket is detached
        from its object, so that the object does not close a later descriptor of the same number.
        """
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.detach()
            if key.fd > 2:
                os.close(key.fd)
        self._selector.close()
        for client in self.clients:
            if client.output >= 0 and client.output not in kept:
                os.close(client.output)

    def patience_s(self) -> float | None:
        """Return the time until `expire` must be called, or None."""
        return None

    def expire(self) -> None:
        """End the jobs whose time has run out."""

    def request(self, client: Client, request: bytes) -> None:
        """Handle a whole request of a client."""
        raise NotImplementedError

    def drop(self, client: Client) -> None:
        """Handle the end of a client's connection."""
        self.release(client)

    def _read(self, client: Client) -> None:
        try:
            data, descriptors, *_ = socket.recv_fds(client.connection, MOST_BYTES, 1)
        except ConnectionResetError:
            data, descriptors = b"", []
        if descriptors:
            (client.output,) = descriptors
        if not data:
            self.drop(client)
            return
        client.request += data
        if client.request.endswith(b"\n"):
            request, client.request = client.request, b""
            self.request(client, request)
