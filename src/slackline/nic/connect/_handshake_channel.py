"""The handshake channel: connecting a socket and exchanging HELLO frames, on an event loop."""

from __future__ import annotations

import array
import asyncio
import errno
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import slackline._native as _native
from slackline.errors import LinkError
from slackline.nic.connect._addresses import SocketAddress, family_of, socket_address
from slackline.nic.connect._handshake import Handshake, HandshakeMessage, Session
from slackline.nic.connect._messages import LONGEST_PADDING, MAX_PAYLOAD, frame, unframe
from slackline.nic.connect._paths import Attempt, LongPacketsLostError
from slackline.nic.connect._sockets import (
    NoPortError,
    closed_in_children,
    none_is_free,
    past,
    ready,
    share_ports,
)
from slackline.wire import HEADER_BYTES

if TYPE_CHECKING:
    from slackline.nic.connect._packet_ladder import PacketLadder

__all__ = [
    "FDS",
    "HandshakeChannel",
    "answer_from",
    "arrival_device",
    "bind_to_device",
    "dial",
    "ends_of",
    "run_handshake",
]

_log = logging.getLogger("slackline.nic")

FDS = 2
"""The descriptors that each end of shared memory passes: its arena and its doorbell."""
_FDS_MARK = b"F"
"""The byte that carries the descriptors: a plain `recv` of the frame before cannot take them."""
_STAGGER_S = 0.1
_OPTION_BYTES = 256
_ARRIVAL = {
    socket.AF_INET: (socket.IPPROTO_IP, 8, 9, 16),
    socket.AF_INET6: (socket.IPPROTO_IPV6, 49, 6, 32),
}
"""The socket options that tell a connection's device, by family: the level, IP_PKTINFO,
IP_PKTOPTIONS, and the place of the device's number in the answer, which is a cmsghdr of 16 bytes
with an in_pktinfo or in6_pktinfo (ip(7), ipv6(7))."""


async def dial(where: str | Sequence[Attempt], timeout_s: float) -> socket.socket:
    """Connect to an abstract Unix name, or by the first of several attempts that succeeds.

    Each attempt may take `timeout_s`. The next attempt begins when the previous attempt has failed,
    and after 100 ms at the latest (RFC 8305, section 5). If all attempts fail, raises the OSError
    or TimeoutError of one attempt: a ConnectionRefusedError if there is one, else the last
    attempt's error.
    """
    if isinstance(where, str):
        return await _connect(socket.AF_UNIX, where, timeout_s)
    if len(where) == 1:
        return await _try(where[0], timeout_s)
    found = await _first_of(where, timeout_s)
    try:
        if isinstance(found, BaseException):
            raise found
        return found
    finally:
        # An error refers to this call's variables. A reference back would keep both, and through
        # the callers' variables the engine too, until the cyclic garbage collector runs.
        del found


async def _first_of(where: Sequence[Attempt], timeout_s: float) -> socket.socket | BaseException:
    """Return the connection of the first attempt that succeeds, or else the error to raise."""
    begun: list[asyncio.Task[socket.socket]] = []
    try:
        for number, attempt in enumerate(where, 1):
            begun.append(asyncio.ensure_future(_try(attempt, timeout_s)))
            while not all(task.done() for task in begun):
                wait_s = None if number == len(where) else _STAGGER_S
                done, _ = await asyncio.wait(
                    [task for task in begun if not task.done()],
                    timeout=wait_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not done or any(task.exception() is None for task in done):
                    break
            for task in begun:
                if task.done() and task.exception() is None:
                    begun.remove(task)
                    return task.result()
        return _chief([task.exception() for task in begun])
    finally:
        for task in begun:
            task.cancel()
            task.add_done_callback(_hang_up)


def _hang_up(task: asyncio.Task[socket.socket]) -> None:
    """Close the connection of an attempt that came too late, since another attempt succeeded."""
    if not task.cancelled() and task.exception() is None:
        task.result().close()


def _chief(errors: Sequence[BaseException | None]) -> BaseException:
    """Return, of the errors of several failed attempts, the most informative about the peer."""
    known = [error for error in errors if error is not None]
    refused = [error for error in known if isinstance(error, ConnectionRefusedError)]
    if not known:
        return LinkError("there is no address to connect to")
    return refused[-1] if refused else known[-1]


async def _try(attempt: Attempt, timeout_s: float) -> socket.socket:
    """Connect as `attempt` says, within `timeout_s`."""
    # The trial of the path needs the module within the time limit of the handshake.
    import slackline.nic.connect._packet_ladder  # noqa: F401

    target = socket_address(attempt.address, attempt.port, attempt.scope)
    family = family_of(attempt.address)
    source = None
    if attempt.source:
        source = socket_address(attempt.source, 0, attempt.scope)
    return await _connect(family, target, timeout_s, source=source, device=attempt.device)


async def _connect(
    family: socket.AddressFamily,
    target: str | SocketAddress,
    timeout_s: float,
    *,
    source: SocketAddress | None = None,
    device: int = 0,
) -> socket.socket:
    sock = closed_in_children(socket.socket(family, socket.SOCK_STREAM))
    try:
        sock.setblocking(False)
        if device:
            bind_to_device(sock, device)
        if source is not None:
            share_ports(sock)
            sock.bind(source)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.get_running_loop().sock_connect(sock, target)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL and none_is_free(family):
                raise NoPortError("this host" if source is None else str(source[0])) from error
            raise
        sock.getpeername()  # Raises if a full backlog left the socket unconnected.
    except BaseException:
        sock.close()
        raise
    return sock


def bind_to_device(sock: socket.socket, device: int) -> None:
    """Have the packets of a socket leave through one device only, whatever the routes say.

    Raises OSError if the device is gone, or if the kernel is older than 5.7 and the user not root.
    """
    name = socket.if_indextoname(device)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name.encode() + b"\0")


def arrival_device(sock: socket.socket) -> int:
    """Return the number of the device by which an accepted TCP connection came in."""
    level, want, get, at = _ARRIVAL[sock.family]
    sock.setsockopt(level, want, 1)
    told = sock.getsockopt(level, get, _OPTION_BYTES)
    sock.setsockopt(level, want, 0)
    return int.from_bytes(told[at : at + 4], sys.byteorder)


def answer_from(sock: socket.socket, device: int) -> None:
    """Send the answers of an accepted connection by `device` if the connection came in by it.

    Where several devices of a host are in one subnet, the routes send all answers from one of the
    devices.
    """
    if arrival_device(sock) != device:
        return
    try:
        bind_to_device(sock, device)
    except PermissionError as error:  # The kernel is older than 5.7 and the user not root.
        _log.info("the routes choose the device that a connection is answered from: %s", error)


def ends_of(sock: socket.socket) -> tuple[str, str]:
    """Return the addresses of a connection, this end's first, without a scope."""
    ours, theirs = sock.getsockname()[0], sock.getpeername()[0]
    return ours.partition("%")[0], theirs.partition("%")[0]


class HandshakeChannel:
    """A handshake channel: sends and receives HELLO frames over one socket.

    The channel owns the socket and the received file descriptors until `release`. With `limit_s`,
    sending and receiving together may take that long; later they raise LinkError, unless they need
    not wait. Descriptors are received only on request (`receive_fds`): the kernel drops those that
    an unauthenticated peer sends.
    """

    def __init__(self, sock: socket.socket, limit_s: float | None = None) -> None:
        sock.setblocking(False)
        self.sock = closed_in_children(sock)
        self._ladder: PacketLadder | None = None
        """The packets of growing length in which long messages travel; None without a trial."""
        self._sent = self._received = 0
        """The bytes of the frame that is sent, or received, at present."""
        self._fds: list[int] = []
        self._released = False
        self.until_s: float | None = None
        """The end of the time limit by the event loop's clock; None without a limit."""
        if limit_s is not None:
            self.until_s = asyncio.get_running_loop().time() + limit_s
        self.late = "the handshake was not answered in time"
        """The text of the error when the time is over."""
        self.left = False
        """Whether the other end closed the connection between two frames, which is no error."""
        self.proven = False
        """Whether the other end has authenticated itself, as the side that accepts learns."""

    def try_path(self) -> str:
        """Try the path with long packets from now on; return the padding of the next message.

        If packets of a length vanish, the error at the end of the time limit says so. On one host
        there is no trial, and the padding is empty. Raises OSError if the connection has ended.
        """
        # Here and not above: ranks that share memory try no path.
        from slackline.nic.connect._packet_ladder import PacketLadder

        self._ladder = PacketLadder.of(self.sock)
        if self._ladder.packets:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._ladder.padding

    def trust(self) -> None:
        """Note that the other end has authenticated itself.

        With a process of this host the time limit ends, because the process may stand still for
        long, and the end of the process ends the connection.
        """
        self.proven = True
        if self.sock.family == socket.AF_UNIX:
            self.until_s = None

    async def send(self, message: HandshakeMessage, job: int) -> None:
        """Send one handshake message as a HELLO frame whose header has the number `job`.

        The message's descriptors follow the frame.
        """
        data = frame(message.payload, job)
        self._sent = len(data)
        for part in [data] if self._ladder is None else self._ladder.cut(data):
            while part:
                try:
                    # The end of a record keeps the kernel from adding the next part to the packet.
                    part = part[self.sock.send(part, socket.MSG_EOR) :]
                except BlockingIOError:
                    await self._wait(write=True)
        while message.fds:
            try:
                socket.send_fds(self.sock, [_FDS_MARK], message.fds)
                break
            except BlockingIOError:
                await self._wait(write=True)

    async def receive(self) -> tuple[int, HandshakeMessage]:
        """Receive the next frame; return the field `job` of its header, and its message.

        The field `job` is a number by which frames of another job are refused. Reads no byte beyond
        the frame. Raises LinkError or FrameError if the frame is no valid HELLO.
        """
        self._received = 0
        most = MAX_PAYLOAD if self._ladder is None else MAX_PAYLOAD + LONGEST_PADDING
        head = await self._read(HEADER_BYTES)
        header = unframe(head, most=most)
        payload = await self._read(header.length)
        if header.payload_checksum != _native.crc32c(payload):
            raise LinkError("the checksum of a HELLO's payload is wrong")
        return header.job, HandshakeMessage(payload=payload)

    async def receive_fds(self) -> HandshakeMessage:
        """Receive the descriptors that an authenticated peer sends after its frame.

        Raises LinkError unless the peer sends two descriptors.
        """
        if self.sock.family != socket.AF_UNIX:
            raise LinkError("descriptors cannot come over this connection")
        while True:
            try:
                mark, fds, flags = _received_fds(self.sock)
                break
            except BlockingIOError:
                await self._wait()
        self._fds += fds
        if not mark:
            raise LinkError("the connection was closed during the handshake")
        if mark == _FDS_MARK and len(fds) < FDS and flags & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))  # The kernel dropped some.
        if mark != _FDS_MARK or len(fds) != FDS or flags & socket.MSG_CTRUNC:
            raise LinkError(f"{len(fds)} descriptors came for shared memory, not exactly {FDS}")
        return HandshakeMessage(fds=tuple(fds))

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
                got = self.sock.recv(length - len(data))
            except BlockingIOError:
                await self._wait()
                continue
            if not got:
                self.left = not data
                raise LinkError("the connection was closed during the handshake")
            data += got
            self._received += len(got)
        return data

    async def _wait(self, *, write: bool = False) -> None:
        """Wait until the socket may be tried again; raise LinkError once the time is over."""
        if past(self.until_s):
            raise self._lost_long_packets() or LinkError(self.late)
        await ready(self.sock, write=write, until_s=self.until_s)

    def _lost_long_packets(self) -> LongPacketsLostError | None:
        """Return the error that long packets of a trial have vanished; None if none have."""
        if self._ladder is None:
            return None
        from slackline.nic.connect._packet_ladder import bytes_arrived, lacks_packets

        ours, theirs = ends_of(self.sock)
        if found := self._ladder.broken_at(bytes_arrived(self.sock, self._sent)):
            return LongPacketsLostError((ours, theirs), found)
        if lacks_packets(self.sock) and (found := self._ladder.broken_at(self._received)):
            return LongPacketsLostError((theirs, ours), found)
        return None


def _received_fds(sock: socket.socket) -> tuple[bytes, list[int], int]:
    """Return the byte, the descriptors and the flags of one message; descriptors end on exec.

    Beyond the descriptors that are expected, the kernel closes what was sent. (The function
    socket.recv_fds of Python 3.11 ignores its flags.)
    """
    fds = array.array("i")
    mark, ancillary, flags, _ = sock.recvmsg(
        len(_FDS_MARK), socket.CMSG_LEN(FDS * fds.itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return mark, list(fds), flags


async def run_handshake(
    channel: HandshakeChannel,
    handshake: Handshake,
    job: int,
    *,
    before_reply: Callable[[], Awaitable[None]] | None = None,
) -> Session:
    """Run a handshake state machine over the channel to its end; return the session.

    `before_reply` is awaited once, after the first message was sent, and may raise.
    """
    try:
        message = next(handshake)
        while True:
            if message.awaits_fds or message.last:
                channel.trust()
            if message.payload:
                await channel.send(message, job)
            if before_reply is not None:
                await before_reply()
                before_reply = None
            if message.last:
                message = next(handshake)
            elif message.awaits_fds:
                message = handshake.send(await channel.receive_fds())
            else:
                message = handshake.send(await _reply(channel, job))
    except StopIteration as end:
        session: Session = end.value
        return session
    finally:
        handshake.close()


async def _reply(channel: HandshakeChannel, job: int) -> HandshakeMessage:
    """Receive the reply of a handshake; raise LinkError if its header does not contain `job`."""
    code, message = await channel.receive()
    if code != job:
        raise LinkError("a HELLO of another job came during the handshake")
    return message
