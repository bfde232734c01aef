"""Connecting two engines: a HELLO each way over a fresh socket, then the socket is a rail.

The lower rank of a pair calls, the higher one listens. A caller proves that it belongs to the job
with a token derived from the job's secret; whoever cannot is turned away and never delays others.
Over a Unix socket (same host) the HELLO also carries the descriptors of arena and doorbell.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import os
import selectors
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from slackline.errors import LinkError, SlacklineError, TimeoutError
from slackline.wire import HEADER_BYTES, FrameKind, Header, crc32c, decode, encode

__all__ = ["Hello", "Listener", "call", "receive_hello", "send_hello"]

_log = logging.getLogger("slackline.nic")

_MAX_HELLO = 4096
_MAX_FDS = 2
_STRANGER_SECONDS = 5.0
_RETRY_SECONDS = 0.05


@dataclass(kw_only=True)
class Hello:
    """What one end tells the other about itself and about the rail to be."""

    engine: str
    token: str = ""
    rail: int = 0
    """Which of the link's connections this is."""
    arena_bytes: int = 0
    """Size of the sender's arena; 0 on a wire."""
    ring: int = 0
    """Offset in the sender's arena of the ring that it reads."""
    fds: list[int] = field(default_factory=list)
    """Arena and doorbell, over Unix sockets."""


def send_hello(sock: socket.socket, hello: Hello, job: int) -> None:
    """Write `hello` as one HELLO frame. The socket must be blocking with a timeout."""
    values = {k: v for k, v in vars(hello).items() if k != "fds"}
    payload = json.dumps(values).encode()
    header = Header(
        kind=FrameKind.HELLO, job=job, length=len(payload), payload_checksum=crc32c(payload)
    )
    data = encode(header) + payload
    if hello.fds:
        socket.send_fds(sock, [data], hello.fds)
    else:
        sock.sendall(data)


def receive_hello(sock: socket.socket, job: int) -> Hello:
    """Read one HELLO frame; raises FrameError or LinkError when it is none."""
    data, fds = b"", list[int]()
    try:
        length = HEADER_BYTES
        header: Header | None = None
        while len(data) < length:
            if sock.family == socket.AF_UNIX:
                got, new, _, _ = socket.recv_fds(sock, length - len(data), _MAX_FDS)
                fds += new
            else:
                got = sock.recv(length - len(data))
            if not got:
                raise LinkError("the peer closed the connection before its HELLO was whole")
            data += got
            if header is None and len(data) == HEADER_BYTES:
                header = decode(data)
                if header.kind is not FrameKind.HELLO or header.job != job:
                    raise LinkError("the first frame is not a HELLO of this job")
                if header.length > _MAX_HELLO:
                    raise LinkError(f"a HELLO of {header.length} bytes is too long")
                length += header.length
        values = json.loads(data[HEADER_BYTES:])
        return Hello(**values, fds=fds)
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise


def call(where: str | tuple[tuple[str, ...], int], deadline: float) -> socket.socket:
    """Connect to a Unix name or to the first TCP address that answers; raises LinkError.

    A refused TCP connection is tried again until `deadline` (time.monotonic()).
    """
    if isinstance(where, str):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(max(0.01, deadline - time.monotonic()))
            sock.connect(where)
        except OSError as error:
            sock.close()
            raise LinkError(f"cannot connect to {where[1:]!r}: {error}") from error
        return sock
    addresses, port = where
    reasons: dict[str, str] = {}
    while True:
        for address in addresses:
            left = deadline - time.monotonic()
            if left <= 0:
                tried = "; ".join(f"{a}:{port}: {why}" for a, why in reasons.items())
                raise LinkError(f"cannot connect: {tried or 'no time left'}")
            try:
                return socket.create_connection((address, port), timeout=min(left, 5.0))
            except OSError as error:
                reasons[address] = str(error)
        time.sleep(min(_RETRY_SECONDS, max(0.0, deadline - time.monotonic())))


class Listener:
    """The engine's ears: a TCP port and an abstract Unix name (which leaves nothing behind)."""

    def __init__(self, engine: str, address: str) -> None:
        self.unix_name = f"\0slackline-{engine}"
        self._unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._unix.bind(self.unix_name)
        self._tcp = socket.create_server((address, 0), backlog=128)
        self._unix.listen(128)
        self.port: int = self._tcp.getsockname()[1]
        self.strangers = 0

    def accept(
        self, expected: dict[tuple[str, int], str], job_of: dict[str, int], deadline: float
    ) -> Iterator[tuple[socket.socket, Hello]]:
        """Yield the sockets of all `expected` (engine, rail) -> token, in the order they come."""
        waiting = dict(expected)
        with selectors.DefaultSelector() as selector:
            for listening in (self._unix, self._tcp):
                selector.register(listening, selectors.EVENT_READ, None)
            pending: dict[socket.socket, float] = {}
            try:
                while waiting:
                    self._expire(selector, pending)
                    left = deadline - time.monotonic()
                    if left <= 0:
                        names = ", ".join(f"{engine} ({rail})" for engine, rail in waiting)
                        raise TimeoutError(f"the rendezvous Timed out waiting for {names}")
                    for key, _ in selector.select(min(left, 0.5)):
                        sock = key.fileobj
                        assert isinstance(sock, socket.socket)
                        if sock in (self._unix, self._tcp):
                            caller, _ = sock.accept()
                            caller.settimeout(1.0)
                            pending[caller] = time.monotonic() + _STRANGER_SECONDS
                            selector.register(caller, selectors.EVENT_READ, None)
                            continue
                        selector.unregister(sock)
                        del pending[sock]
                        hello = self._identify(sock, waiting, job_of)
                        if hello is not None:
                            yield sock, hello
            finally:
                for sock in pending:
                    sock.close()

    def _identify(
        self, sock: socket.socket, waiting: dict[tuple[str, int], str], job_of: dict[str, int]
    ) -> Hello | None:
        why = "it did not send a HELLO"
        for job in set(job_of.values()):
            if not _first_job_is(sock, job):
                continue
            try:
                hello = receive_hello(sock, job)
            except (OSError, ValueError, TypeError, SlacklineError) as error:
                why = str(error)
                break
            token = waiting.get((hello.engine, hello.rail))
            if token is not None and hmac.compare_digest(token, hello.token):
                del waiting[hello.engine, hello.rail]
                return hello
            for fd in hello.fds:
                os.close(fd)
            why = "its token is wrong or it was not expected"
            break
        self._turn_away(sock, why)
        return None

    def _expire(
        self, selector: selectors.BaseSelector, pending: dict[socket.socket, float]
    ) -> None:
        now = time.monotonic()
        for sock in [s for s, until in pending.items() if now > until]:
            selector.unregister(sock)
            del pending[sock]
            self._turn_away(sock, "it said nothing")

    def _turn_away(self, sock: socket.socket, why: str) -> None:
        self.strangers += 1
        with contextlib.suppress(OSError):
            _log.warning("turned away a stranger from %s: %s", sock.getpeername() or "unix", why)
        sock.close()

    def close(self) -> None:
        self._unix.close()
        self._tcp.close()


def _first_job_is(sock: socket.socket, job: int) -> bool:
    """Whether the frame that waits on `sock` claims `job`. Reads nothing."""
    try:
        head = sock.recv(8, socket.MSG_PEEK)
    except OSError:
        return False
    return len(head) == 8 and int.from_bytes(head[4:8], "little") == job
