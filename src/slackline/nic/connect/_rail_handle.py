"""The transfer of an authenticated connection to the engine as a rail, and the rail's handle.

shm   The socket is the control socket of two ring buffers in memory that both processes map.
tcp   The socket is the rail.
tls   The TLS proxy owns the socket, and the engine gets one end of a plain socket pair.
udp   A pair of UDP sockets is the rail. The TCP socket stays open as a companion connection: the
      end of that connection shows that the peer's process, or its end of the rail, has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import slackline._native as _native
from slackline._lazy import record
from slackline.errors import LinkError
from slackline.nic.connect._address_space import unmapped_text
from slackline.nic.connect._addresses import Interface, to_rows
from slackline.nic.connect._connection_manager import ConnectionManager
from slackline.nic.connect._handshake import Session
from slackline.nic.connect._messages import TransportParameters
from slackline.nic.connect._paths import RailPlan
from slackline.nic.connect._sockets import (
    AUTO,
    bind_to_free_port,
    closed_in_children,
    control_congestion,
    ready,
)
from slackline.units import show_bytes

if TYPE_CHECKING:
    from slackline.nic.connect._tls import Identity
    from slackline.nic.connect._tls_proxy import TlsProxy

__all__ = [
    "LocalContext",
    "NoSharedMemoryError",
    "ParametersMaker",
    "RailHandle",
    "hand_over",
    "secured",
]

_NAME_BYTES = 16
_LONGEST_PACKET = 65535
_MTU = {
    socket.AF_INET: (socket.IPPROTO_IP, 14, 28),
    socket.AF_INET6: (socket.IPPROTO_IPV6, 24, 48),
}
"""The socket options IP_MTU and IPV6_MTU, and the bytes of the headers of a UDP packet."""


class NoSharedMemoryError(LinkError):
    """Two processes of one host cannot map each other's registered memory; the text says why."""


@record(frozen=True, kw_only=True)
class LocalContext:
    """The local context of all links: the engine, its event loop, and its TLS objects."""

    engine_name: str
    engine: _native.Engine
    manager: ConnectionManager
    identity: Identity | None
    """The engine's certificate; None without TLS."""
    tls_proxy: TlsProxy | None
    """The TLS proxy; None without TLS."""
    interfaces: Callable[[], tuple[Interface, ...]]
    """A function that returns the addresses and ports of the engine's listener."""
    congestion: str = AUTO
    """The TCP congestion control of TCP rails, or "auto" or "system"."""
    anywhere: bool = True
    """Whether this end connects to every address that a peer names; if not, only to addresses that
    an authenticated connection of the peer came from."""

    @property
    def certificate(self) -> bytes:
        """The engine's certificate in DER; empty without TLS."""
        return b"" if self.identity is None else self.identity.certificate


class RailHandle:
    """The handle of a rail in the engine: reports the rail's failure, frees its resources."""

    def __init__(self, context: LocalContext, link: int, index: int) -> None:
        self._engine, self._link, self._index = context.engine, link, index
        self._closing: Callable[[], object] | None = None
        self._closed = False

    def on_close(self, fn: Callable[[], object]) -> None:
        """Set the function that frees the rail's resources; `close` calls the function."""
        self._closing = fn

    def broke(self, reason: str) -> None:
        """Have the engine drop the rail, unless this handle is closed. Any thread may call."""
        if not self._closed:
            self._engine.drop_rail(self._link, self._index, reason)

    def close(self) -> None:
        """Free the rail's other resources; the engine must have stopped using the rail."""
        self._closed = True
        closing, self._closing = self._closing, None  # A task that it cancels refers to the handle.
        if closing is not None:
            closing()


class ParametersMaker:
    """A context manager that makes this end's transport parameters for a rail.

    `sock` is the connection on which the handshake runs. On exit, a UDP socket that was made for
    the rail is closed unless `take_udp` has taken it, and a ring is freed unless `take_ring` was
    called. The peer's arena that `map` has mapped stays mapped as long as a rail uses it.
    """

    def __init__(
        self, context: LocalContext, kind: str, sock: socket.socket, padding: str = ""
    ) -> None:
        """Make parameters for a rail of this kind; `padding` is added to those over a network."""
        self._engine, self._manager = context.engine, context.manager
        self._interfaces = context.interfaces
        self._kind, self._sock, self._padding = kind, sock, padding
        self._udp: socket.socket | None = None
        self._ring: tuple[int, socket.socket] | None = None
        self._arena: _native.PeerArena | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._udp is not None:
            self._udp.close()
        self._arena = None
        if self._ring is not None:
            ring, sock = self._ring
            task = self._manager.spawn(_free_ring(self._engine, ring, sock))
            task.add_done_callback(lambda _: sock.close())  # The task may never start.

    def make(self) -> tuple[TransportParameters, tuple[int, ...]]:
        """Return this end's transport parameters and the file descriptors to send with them."""
        engine = self._engine
        if self._kind == "shm":
            try:
                ring = engine.new_ring()
            except RuntimeError as error:  # A small arena has room for few peers.
                return TransportParameters(unmapped=_no_ring(engine, error)), ()
            try:
                sock = closed_in_children(self._sock.dup())
            except OSError:
                engine.free_ring(ring)
                raise
            self._ring = ring, sock
            parameters = TransportParameters(arena_bytes=engine.arena_bytes, ring=self._ring[0])
            return parameters, (engine.arena_fd, engine.doorbell_fd)
        if self._kind == "news":
            return TransportParameters(interfaces=json.dumps(to_rows(self._interfaces()))), ()
        if self._kind != "udp":
            return TransportParameters(padding=self._padding), ()
        host, _, *rest = self._sock.getsockname()
        self._udp = closed_in_children(socket.socket(self._sock.family, socket.SOCK_DGRAM))
        device = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _NAME_BYTES)
        if device.strip(b"\0") and not any(rest):
            self._udp.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
        bind_to_free_port(self._udp, (host, 0, *rest))
        port = self._udp.getsockname()[1]
        packet_bytes = _packet_bytes(self._sock)
        return TransportParameters(port=port, packet_bytes=packet_bytes, padding=self._padding), ()

    def map(self, theirs: TransportParameters, fds: tuple[int, ...]) -> str:
        """Map the arena that the peer has sent; return why this process cannot, "" if it can.

        Raises LinkError if the arena is not as the peer says.
        """
        try:
            self._arena = _native.PeerArena(fds[0], theirs.arena_bytes)
        except ValueError as error:
            raise LinkError(str(error)) from error
        except OSError as error:
            return unmapped_text(theirs.arena_bytes, error)
        return ""

    @property
    def memory(self) -> _native.PeerArena:
        """The peer's arena that `map` has mapped."""
        if self._arena is None:
            raise LinkError("no memory came for a rail in shared memory")
        return self._arena

    def take_ring(self) -> None:
        """Leave the receive ring to the rail that the engine has made of the connection."""
        assert self._ring is not None
        self._ring[1].close()
        self._ring = None

    def take_udp(self, port: int) -> socket.socket:
        """Return the UDP socket, connected to `port` of the peer's host; the caller owns it."""
        assert self._udp is not None
        self._udp.setblocking(False)
        host, _, *rest = self._sock.getpeername()
        self._udp.connect((host, port, *rest))
        udp, self._udp = self._udp, None
        return udp


async def secured(
    identity: Identity, sock: socket.socket, session: Session, *, server: bool
) -> socket.socket:
    """Return an authenticated connection, encrypted by TLS with the engine's certificate."""
    from slackline.nic.connect._tls import secure  # The identity's module, imported for it.

    return await secure(sock, identity, session.certificate, server=server)


def hand_over(
    context: LocalContext,
    link: int,
    plan: RailPlan,
    sock: socket.socket,
    session: Session,
    parameters: ParametersMaker,
    *,
    checksums: bool,
) -> RailHandle:
    """Hand an authenticated connection to the engine as a rail; return the rail's handle.

    Takes ownership of `sock` and of the session's file descriptors, also on failure.
    """
    handle = RailHandle(context, link, plan.index)
    with contextlib.ExitStack() as undo:
        undo.callback(sock.close)
        for fd in session.fds:
            undo.callback(os.close, fd)
        if plan.kind == "shm":
            _hand_over_memory(context, link, sock, session, parameters, undo)
            return handle
        name = f"{plan.kind} {_shown(sock.getsockname())}>{_shown(sock.getpeername())}"
        most = min(session.ours.packet_bytes, session.theirs.packet_bytes)
        rail: socket.socket = sock
        if plan.kind == "tcp":
            control_congestion(sock, context.congestion)
        if plan.kind == "udp":
            rail = parameters.take_udp(session.theirs.port)
            companion = context.manager.spawn(_watch_companion(sock, handle))
            companion.add_done_callback(lambda _: sock.close())  # The task may never start.
            handle.on_close(companion.cancel)
        elif isinstance(sock, ssl.SSLSocket):
            assert context.tls_proxy is not None
            rail = context.tls_proxy.add(sock, handle.broke)
        undo.pop_all()
        context.engine.add_rail(
            link, plan.index, plan.kind, rail.detach(), session.job, checksums, name, most
        )
    return handle


def _hand_over_memory(
    context: LocalContext,
    link: int,
    sock: socket.socket,
    session: Session,
    parameters: ParametersMaker,
    undo: contextlib.ExitStack,
) -> None:
    """Hand a shared-memory rail to the engine, with the peer's arena and doorbell."""
    if len(session.fds) != 2:
        raise LinkError(f"{len(session.fds)} descriptors came for shared memory, not 2")
    ours, theirs = session.ours, session.theirs
    memory = parameters.memory
    undo.pop_all()
    arena, doorbell = session.fds
    os.close(arena)  # The mapping stays.
    try:
        context.engine.add_shm_rail(link, memory, doorbell, sock.detach(), ours.ring, theirs.ring)
    except ValueError as error:
        raise LinkError(str(error)) from error
    parameters.take_ring()


def _no_ring(engine: _native.Engine, error: RuntimeError) -> str:
    """Return why the engine's arena has no room for a further peer of the host."""
    return (
        f"process {os.getpid()} has {show_bytes(engine.arena_bytes)} of registered memory: "
        f"{error} for another rank of its host; set SLACKLINE_ARENA to more"
    )


def _shown(address: tuple[Any, ...]) -> str:
    """Return the host of a socket address, with the device if it is link-local: "fe80::1%eth0"."""
    host, scope = str(address[0]).partition("%")[0], address[3] if len(address) > 3 else 0
    return f"{host}%{socket.if_indextoname(scope)}" if scope else host


def _packet_bytes(sock: socket.socket) -> int:
    """Return the largest UDP payload in bytes that the path of a TCP socket takes unfragmented."""
    from slackline.nic.connect._packet_ladder import (
        longest_packet,  # As for all rails of a network.
    )

    level, option, headers = _MTU[socket.AddressFamily(sock.family)]
    most = sock.getsockopt(level, option)
    return max(0, min(_LONGEST_PACKET, most, longest_packet(sock) or most) - headers)


async def _free_ring(engine: _native.Engine, ring: int, sock: socket.socket) -> None:
    """Free the ring of a failed handshake once the other end of `sock` has closed the connection.

    Until then the other end may write to the ring.
    """
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)  # The other end learns that the handshake has failed.
        while True:
            await ready(sock)
            if not sock.recv(4096):
                break
    engine.free_ring(ring)


async def _watch_companion(sock: socket.socket, handle: RailHandle) -> None:
    """Drop a UDP rail when its companion TCP connection shows that the peer's end is gone."""
    await ready(sock)
    try:
        received = sock.recv(1)
        why = "closed" if not received else "broke the protocol on"
    except OSError as error:
        why = f"lost, with {error.strerror},"
    handle.broke(f"the peer {why} the connection beside the rail")
