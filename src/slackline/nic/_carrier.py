"""Handing an authenticated socket to the engine, and what has to live beside it.

shm   the socket is the control socket of two rings in memory that both map
tcp   the socket is the rail
tls   the relay has the socket, the engine one end of a plain pair
udp   a pair of UDP sockets is the rail; the TCP socket stays as a life line: when it ends, so
has the peer's process or its end of the rail
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import slackline._native as _native
from slackline.errors import LinkError
from slackline.nic._handshake import Session
from slackline.nic._keeper import Keeper
from slackline.nic._line import control_by, ready
from slackline.nic._messages import Terms
from slackline.nic._paths import RailPlan
from slackline.nic._relay import Relay
from slackline.nic._tls import Identity

__all__ = ["Carrier", "Site", "TermsMaker", "carry"]


@dataclass(frozen=True, kw_only=True)
class Site:
    """This end of every link."""

    engine_name: str
    engine: _native.Engine
    keeper: Keeper
    identity: Identity | None
    """With TLS."""
    relay: Relay | None
    """With TLS."""
    congestion: str = ""
    """The congestion control of TCP rails; the system's if it is empty."""

    @property
    def certificate(self) -> bytes:
        return b"" if self.identity is None else self.identity.certificate


class Carrier:
    """What keeps a rail up beside the engine."""

    def __init__(self, site: Site, link: int, index: int) -> None:
        self._engine, self._link, self._index = site.engine, link, index
        self._closing: Callable[[], object] | None = None
        self._closed = False

    def on_close(self, fn: Callable[[], object]) -> None:
        self._closing = fn

    def broke(self, reason: str) -> None:
        """Tell the engine that the rail is no good; nothing, once it is closed. Any thread."""
        if not self._closed:
            self._engine.drop_rail(self._link, self._index, reason)

    def close(self) -> None:
        """The engine uses the rail no more."""
        self._closed = True
        if self._closing is not None:
            self._closing()


class TermsMaker:
    """Makes what this end brings to the rail that is agreed on over `sock`, and closes it again
    unless it is taken.
    """

    def __init__(self, site: Site, kind: str, sock: socket.socket) -> None:
        self._engine, self._kind, self._sock = site.engine, kind, sock
        self._udp: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._udp is not None:
            self._udp.close()

    def make(self) -> tuple[Terms, tuple[int, ...]]:
        engine = self._engine
        if self._kind == "shm":
            terms = Terms(arena_bytes=engine.arena_bytes, ring=engine.new_ring())
            return terms, (engine.arena_fd, engine.doorbell_fd)
        if self._kind != "udp":
            return Terms(), ()
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind((self._sock.getsockname()[0], 0))
        return Terms(port=self._udp.getsockname()[1]), ()

    def take_udp(self, port: int) -> socket.socket:
        """The UDP socket, connected to `port` of the host at the other end of the line."""
        assert self._udp is not None
        self._udp.setblocking(False)
        self._udp.connect((self._sock.getpeername()[0], port))
        udp, self._udp = self._udp, None
        return udp


def carry(
    site: Site,
    link: int,
    plan: RailPlan,
    sock: socket.socket,
    session: Session,
    terms: TermsMaker,
    *,
    checksums: bool,
) -> Carrier:
    """Make the rail. Takes `sock` and the session's descriptors, also when it fails."""
    carrier = Carrier(site, link, plan.index)
    with contextlib.ExitStack() as undo:
        undo.callback(sock.close)
        for fd in session.fds:
            undo.callback(os.close, fd)
        if plan.kind == "shm":
            _carry_memory(site, link, sock, session, undo)
            return carrier
        name = f"{plan.kind} {sock.getsockname()[0]}>{sock.getpeername()[0]}"
        rail: socket.socket = sock
        if site.congestion and plan.kind != "udp":
            control_by(sock, site.congestion)
        if plan.kind == "udp":
            rail = terms.take_udp(session.theirs.port)
            line = site.keeper.spawn(_watch_life_line(sock, carrier))
            line.add_done_callback(lambda _: sock.close())  # it may be cancelled before it begins
            carrier.on_close(line.cancel)
        elif isinstance(sock, ssl.SSLSocket):
            assert site.relay is not None
            rail = site.relay.add(sock, carrier.broke)
        undo.pop_all()
        site.engine.add_rail(
            link, plan.index, plan.kind, rail.detach(), session.job, checksums, name
        )
    return carrier


def _carry_memory(
    site: Site, link: int, sock: socket.socket, session: Session, undo: contextlib.ExitStack
) -> None:
    if len(session.fds) != 2:
        raise LinkError(f"{len(session.fds)} descriptors came for shared memory, not 2")
    ours, theirs = session.ours, session.theirs
    undo.pop_all()
    arena, doorbell = session.fds
    size, control = theirs.arena_bytes, sock.detach()
    try:
        site.engine.add_shm_rail(link, arena, size, doorbell, control, ours.ring, theirs.ring)
    except ValueError as error:
        raise LinkError(str(error)) from error


async def _watch_life_line(sock: socket.socket, carrier: Carrier) -> None:
    """Tell the engine when the peer's end of a UDP rail, or its process, is gone."""
    await ready(sock)
    try:
        said = sock.recv(1)
        why = "closed" if not said else "broke the protocol on"
    except OSError as error:
        why = f"lost, with {error.strerror},"
    carrier.broke(f"the peer {why} the connection beside the rail")
