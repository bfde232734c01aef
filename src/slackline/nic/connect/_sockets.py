"""Sockets on the event loop: waits for them, and their end in a forked child.

A connection ends with its last descriptor. A child that kept copies of its parent's sockets would
hide the parent's death from the peers until the child ends too. So the child closes all sockets at
once.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import weakref
from typing import TypeVar

__all__ = ["closed_in_children", "lacks_resources", "past", "ready"]

Sock = TypeVar("Sock", bound=socket.socket)

_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
"""All sockets of all engines of the process: a fork concerns the process as a whole."""


def closed_in_children(sock: Sock) -> Sock:
    """Have a child of `os.fork` close the socket, until it is closed or detached; return it.

    The parent's socket is not affected: nothing is shut down.
    """
    _sockets.add(sock)
    return sock


def lacks_resources(error: Exception) -> bool:
    """Return whether the error says that this process or host lacks memory or descriptors."""
    if isinstance(error, OSError):
        return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
    return isinstance(error, MemoryError)


async def ready(sock: socket.socket, *, write: bool = False, until_s: float | None = None) -> None:
    """Wait until the socket is readable, or writable with `write`.

    With `until_s`, a time of the running event loop, also return once this time has passed. The
    caller must then try the socket once more: a process that did not run meanwhile, on a busy or
    stopped machine, finds what the peer has sent long ago only after the time has passed.
    """
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    (loop.add_writer if write else loop.add_reader)(sock, wake)
    timer = None if until_s is None else loop.call_at(until_s, wake)
    try:
        await woken
    finally:
        (loop.remove_writer if write else loop.remove_reader)(sock)
        if timer is not None:
            timer.cancel()


def past(until_s: float | None) -> bool:
    """Return whether a time of the running event loop has passed; never for None."""
    return until_s is not None and asyncio.get_running_loop().time() >= until_s


def _close_all() -> None:
    for sock in list(_sockets):
        # After `detach` the child's copy of the socket closes no descriptor that the child opens.
        if (fd := sock.detach()) >= 0:
            os.close(fd)
    _sockets.clear()


os.register_at_fork(after_in_child=_close_all)
