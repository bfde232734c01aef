"""Cuts between a process and a store: connections that end, or that carry nothing any more.

The process changes sockets of its own: it ends them, or attaches a filter of the kernel to them
that drops each packet which arrives. Most systems allow both to everybody; some allow filters to
root alone.
"""

import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

__all__ = ["Silence", "end_connections", "may_silence"]

_SO_ATTACH_FILTER = 26
_SO_DETACH_FILTER = 27
_RETURN = 0x06


def may_silence() -> bool:
    """Return whether this system allows this process to attach filters to its sockets."""
    with socket.socket() as probe:
        try:
            _drop_all(probe)
        except PermissionError:
            return False
    return True


def _drop_all(sock: socket.socket) -> None:
    """Drop each packet that arrives at a socket from now on."""
    program = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN, 0, 0, 0))
    filtered = struct.pack("HP", 1, ctypes.addressof(program))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filtered)


def end_connections(port: int, *, served: bool) -> None:
    """End this process's connections to `port` of another process.

    If this process itself serves the port, `served`, end those of the other processes to it.
    """
    with _sockets(port, served=served) as found:
        for each in found:
            if not _listens(each):
                each.shutdown(socket.SHUT_RDWR)


class Silence:
    """A cut that nobody is told of: nothing arrives here from `port`, or at the port if served."""

    def __init__(self, port: int, *, served: bool) -> None:
        """Begin the silence of the connections that there are now.

        With `served`, nobody can connect to the port either.
        """
        self._stack = ExitStack()
        self._silent = self._stack.enter_context(_sockets(port, served=served))
        for each in self._silent:
            _drop_all(each)

    def end(self, *, cut: bool) -> None:
        """End the silence; with `cut`, end the connections too."""
        with self._stack:
            for each in self._silent:
                each.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
                if cut and not _listens(each):
                    with suppress(OSError):  # The peer may have ended it.
                        each.shutdown(socket.SHUT_RDWR)


@contextmanager
def _sockets(port: int, *, served: bool) -> Iterator[list[socket.socket]]:
    """Provide this process's sockets between it and a port, as duplicates.

    With `served` these are the port's own ones, without the connections of this process to itself.
    """
    with ExitStack() as stack:
        found = [stack.enter_context(each) for each in _internet_sockets()]
        own = {each.getsockname()[1] for each in found if _peer_port(each) == port}
        if served:
            yield [
                each
                for each in found
                if each.getsockname()[1] == port and _peer_port(each) not in own
            ]
        else:
            yield [each for each in found if _peer_port(each) == port]


def _internet_sockets() -> Iterator[socket.socket]:
    """Generate duplicates of this process's sockets of the internet families, each once."""
    known = set[str]()
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # Other threads may close a descriptor meanwhile.
            name = os.readlink(f"/proc/self/fd/{descriptor}")
            if name.startswith("socket:") and name not in known:
                known.add(name)
                each = socket.socket(fileno=os.dup(descriptor))
                if each.family in (socket.AF_INET, socket.AF_INET6):
                    yield each
                else:
                    each.close()


def _peer_port(each: socket.socket) -> int | None:
    try:
        return int(each.getpeername()[1])
    except OSError:  # It listens, or its peer has gone.
        return None


def _listens(each: socket.socket) -> bool:
    return bool(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
