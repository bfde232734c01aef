"""The handshake channel: connecting a socket and exchanging HELLO frames, on an event loop."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from slackline.errors import LinkError, UsageError
from slackline.nic._handshake import Said, Session, Talk
from slackline.nic._messages import frame, unframe
from slackline.wire import HEADER_BYTES, crc32c

__all__ = ["Line", "control_by", "converse", "dial", "ready"]

_MAX_FDS = 2
_CONTROLS = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


async def ready(sock: socket.socket, *, write: bool = False) -> None:
    """Wait until the socket is readable, or writable with `write`."""
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    (loop.add_writer if write else loop.add_reader)(sock, wake)
    try:
        await woken
    finally:
        (loop.remove_writer if write else loop.remove_reader)(sock)


async def dial(
    where: str | Sequence[tuple[str, int]], source: str, timeout_s: float
) -> socket.socket:
    """Connect to an abstract Unix name, or from `source` to the first address that answers.

    Each attempt may take `timeout_s`. Raises the OSError or TimeoutError of the last attempt.
    """
    loop = asyncio.get_running_loop()
    family = socket.AF_UNIX if isinstance(where, str) else socket.AF_INET
    targets: Sequence[str | tuple[str, int]] = [where] if isinstance(where, str) else where
    for number, target in enumerate(targets, 1):
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            if source:
                sock.bind((source, 0))
            async with asyncio.timeout(timeout_s):
                await loop.sock_connect(sock, target)
            sock.getpeername()  # A Unix socket with a full backlog only looks connected.
            return sock
        except BaseException as error:
            sock.close()
            if number == len(targets) or not isinstance(error, OSError):
                raise
    raise LinkError("there is no address to connect to")


def control_by(sock: socket.socket, congestion: str) -> None:
    """Set the kernel's TCP congestion control of this name on the socket.

    Raises UsageError, with the available names, if this process may not use it.
    """
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
    except OSError as error:
        offered = ", ".join(_CONTROLS.read_text().split())
        raise UsageError(
            f"the congestion control {congestion!r} cannot be had here ({error.strerror}): "
            f"the kernel offers {offered}"
        ) from error


class Line:
    """A handshake channel: sends and receives HELLO frames over one socket.

    The channel owns the socket and the received file descriptors until `release`.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._fds: list[int] = []
        self._released = False
        self.left = False
        """Whether the other end closed the connection between two frames, which is no error."""

    async def say(self, said: Said, job: int) -> None:
        """Send one handshake message as a HELLO frame with job code `job`."""
        data, fds = frame(said.payload, job), said.fds
        while data:
            try:
                sent = socket.send_fds(self.sock, [data], fds) if fds else self.sock.send(data)
            except BlockingIOError:
                await ready(self.sock, write=True)
                continue
            data, fds = data[sent:], ()

    async def hear(self) -> tuple[int, Said]:
        """Receive the next frame and return its job code and message.

        Reads no byte beyond the frame. Raises LinkError or FrameError if it is no valid HELLO.
        """
        head = await self._read(HEADER_BYTES)
        header = unframe(head)
        payload = await self._read(header.length)
        if header.payload_checksum != crc32c(payload):
            raise LinkError("a HELLO's payload does not fit its checksum")
        return header.job, Said(payload=payload, fds=tuple(self._fds))

    def close(self) -> None:
        """Close the socket and the received descriptors, unless they were released."""
        if self._released:
            return
        self.sock.close()
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()

    def release(self) -> socket.socket:
        """Return the socket; socket and received descriptors now belong to the caller."""
        self._released = True
        return self.sock

    async def _read(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            try:
                got = self._receive(length - len(data))
            except BlockingIOError:
                await ready(self.sock)
                continue
            if not got:
                self.left = not data
                raise LinkError("the connection was closed during the handshake")
            data += got
        return data

    def _receive(self, length: int) -> bytes:
        if self.sock.family != socket.AF_UNIX:
            return self.sock.recv(length)
        data, fds, _, _ = socket.recv_fds(self.sock, length, _MAX_FDS)
        self._fds += fds
        if len(self._fds) > _MAX_FDS:
            raise LinkError(f"a HELLO came with more than {_MAX_FDS} descriptors")
        return data


async def converse(line: Line, talk: Talk, job: int) -> Session:
    """Run a handshake state machine over the channel to its end; return the session."""
    try:
        said = next(talk)
        while True:
            await line.say(said, job)
            said = next(talk) if said.last else talk.send(await _reply(line, job))
    except StopIteration as end:
        session: Session = end.value
        return session
    finally:
        talk.close()


async def _reply(line: Line, job: int) -> Said:
    """Receive the reply of a handshake; raise LinkError if its job code is another."""
    code, said = await line.hear()
    if code != job:
        raise LinkError("a HELLO of another job came during the handshake")
    return said
