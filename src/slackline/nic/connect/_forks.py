"""The sockets of this process that a forked child closes at once.

A connection ends with its last descriptor. A child that kept copies of its parent's sockets would
hide the parent's death from the peers until the child ends too.
"""

from __future__ import annotations

import os
import socket
import weakref
from typing import TypeVar

__all__ = ["closed_in_children"]

Sock = TypeVar("Sock", bound=socket.socket)

_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
"""All sockets of all engines of the process: a fork concerns the process as a whole."""


def closed_in_children(sock: Sock) -> Sock:
    """Have a child of `os.fork` close the socket, until it is closed or detached; return it.

    The parent's socket is not affected: nothing is shut down.
    """
    _sockets.add(sock)
    return sock


def _close_all() -> None:
    for sock in list(_sockets):
        # After `detach` the child's copy of the socket closes no descriptor that the child opens.
        if (fd := sock.detach()) >= 0:
            os.close(fd)
    _sockets.clear()


os.register_at_fork(after_in_child=_close_all)
