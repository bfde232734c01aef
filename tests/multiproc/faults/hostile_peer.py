"""A hostile member of a group, which has the job's secret and sends bytes that a test chooses."""

import os
import random
import socket
from collections.abc import Mapping
from typing import Any, Self

from fault_proxy import loopback

from slackline.nic import NicOptions, Store
from slackline.nic.connect._addresses import Interface
from slackline.nic.connect._handshake import HandshakeMessage, Session, call, fresh_nonce
from slackline.nic.connect._listener import unix_name
from slackline.nic.connect._messages import Hello, TransportParameters, frame, unframe
from slackline.nic.connect._opening_store import OpeningStore
from slackline.nic.connect._rendezvous import (
    EndpointDescriptor,
    exchange_descriptors,
    host_identity,
)
from slackline.wire import FIELDS, HEADER_BYTES, MAGIC, VERSION, FrameKind, crc32c

PATIENCE_S = 20.0
_STUCK_S = 5.0


def sealed(fields: Mapping[str, int], payload: bytes = b"") -> bytes:
    """Return a frame with a right header checksum, whatever its fields say."""
    told = {"magic": MAGIC, "version": VERSION, "length": len(payload)} | dict(fields)
    head = b"".join(
        (told.get(field.name, 0) % (1 << 8 * field.width)).to_bytes(field.width, "little")
        for field in FIELDS[:-1]
    )
    return head + crc32c(head).to_bytes(4, "little") + payload


def opened(head: bytes) -> dict[str, int]:
    """Return the fields of a frame header by their names."""
    return {f.name: int.from_bytes(head[f.offset : f.offset + f.width], "little") for f in FIELDS}


class HostilePeer:
    """Rank 0 of a group of two, played by the test against rank 1."""

    def __init__(self, store: Store, options: NicOptions, rng: random.Random) -> None:
        """Meet the victim in the store; `self.victim` is the rendezvous record of the victim.

        `options` must equal the victim's options wherever ranks must agree.
        """
        self.rng = rng
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=16)
        port = self._listener.getsockname()[1]
        descriptor = EndpointDescriptor(
            engine=rng.randbytes(16).hex(),
            host=host_identity(),
            interfaces=(Interface(name="lo", address="127.0.0.1", prefix=8, port=port),),
            chosen=False,
            options=options.agreed(),
        )
        self._name = descriptor.engine
        self.rendezvous = exchange_descriptors(
            OpeningStore(store, 0, 2, limit_s=PATIENCE_S), descriptor
        )
        self.victim = self.rendezvous.descriptors[1]
        self._sockets: list[socket.socket] = [self._listener]
        self._fds: list[int] = []
        self.job = 0
        self.sent = 0
        """The number of the last frame that was sent with a number."""
        self.heard = 0
        """The number of the last frame that has come with a number."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self._sockets:
            sock.close()
        for fd in self._fds:
            os.close(fd)

    def keep(self, *fds: int) -> None:
        """Keep these descriptors open until the end of the attack, and close them then."""
        self._fds += fds

    def dial(
        self,
        kind: str,
        terms: TransportParameters,
        fds: tuple[int, ...] = (),
        *,
        local: bool | None = None,
        certificate: bytes = b"",
    ) -> tuple[socket.socket, Session]:
        """Connect to the victim and complete the handshake with these transport parameters.

        `local` connects to the victim's Unix socket, by default for shared memory only.
        """
        if kind == "shm" if local is None else local:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.connect(unix_name(self.victim.engine))
        else:
            (lo,) = loopback(self.victim.told())
            sock = socket.create_connection(("127.0.0.1", lo.port))
        self._sockets.append(sock)
        sock.settimeout(PATIENCE_S)
        hello = Hello(
            engine=self._name,
            peer=self.victim.engine,
            rail=0,
            kind=kind,
            nonce=fresh_nonce(),
            certificate=certificate.hex(),
        )
        handshake = call(
            hello, self.rendezvous.key((self._name, self.victim.engine)), lambda: (terms, fds)
        )
        message = next(handshake)
        try:
            while True:
                if message.payload:
                    sock.sendall(frame(message.payload, self.rendezvous.code))
                if message.fds:
                    socket.send_fds(sock, [b"F"], message.fds)
                if message.last:
                    message = next(handshake)
                    continue
                if message.awaits_fds:
                    _, found, _, _ = socket.recv_fds(sock, 1, 2, socket.MSG_CMSG_CLOEXEC)
                    self._fds += found
                    reply = HandshakeMessage(fds=tuple(found))
                else:
                    reply = HandshakeMessage(payload=self._payload(sock))
                message = handshake.send(reply)
        except StopIteration as end:
            session: Session = end.value
        self.job = session.job
        return sock, session

    def _payload(self, sock: socket.socket) -> bytes:
        head = received(sock, HEADER_BYTES)
        return received(sock, unframe(head).length)

    def hear(self, sock: socket.socket) -> tuple[dict[str, int], bytes]:
        """Receive the victim's next frame of an operation; skip acknowledgements and probes."""
        while True:
            fields = opened(received(sock, HEADER_BYTES))
            payload = received(sock, fields["length"])
            self.heard = fields["sequence"] or self.heard
            if fields["kind"] not in (FrameKind.ACK, FrameKind.PROBE):
                return fields, payload

    def numbered(self, fields: Mapping[str, int], payload: bytes = b"", **changed: Any) -> bytes:
        """Return a frame from this rank with the next sequence number of the link."""
        self.sent += 1
        mine = {"source": 0, "job": self.job, "sequence": self.sent, "acknowledge": self.heard + 1}
        return sealed({**fields, **mine, "payload_checksum": 0, **changed}, payload)

    def bare(self, kind: int, **fields: int) -> bytes:
        """Return a frame of this kind without a number."""
        return sealed({"kind": kind, "job": self.job, **fields})


def received(sock: socket.socket, length: int) -> bytes:
    """Receive exactly `length` bytes; raise ConnectionError if the connection ends before."""
    data = b""
    while len(data) < length:
        got = sock.recv(length - len(data))
        if not got:
            raise ConnectionError("the victim has closed the connection")
        data += got
    return data


def flood(sock: socket.socket, data: bytes, times: int) -> bool:
    """Send `data` repeatedly, `times` times, and read nothing; return whether all was sent.

    The victim may cut the connection, or may stop reading.
    """
    sock.settimeout(_STUCK_S)
    try:
        for _ in range(times):
            sock.sendall(data)
    except OSError:
        return False
    return True
