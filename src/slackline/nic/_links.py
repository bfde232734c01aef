"""The links of an engine: which exist, and how the missing ones of a new group are made."""

from __future__ import annotations

import logging
import os
import socket
import time
from dataclasses import dataclass

import slackline._native as _native
from slackline.errors import LinkError, PeerError, SlacklineError
from slackline.nic._handshake import Hello, Listener, call, receive_hello, send_hello
from slackline.nic._options import NicOptions
from slackline.nic._rendezvous import Meeting, Record

__all__ = ["Links"]

_log = logging.getLogger("slackline.nic")


@dataclass(frozen=True, slots=True)
class _Call:
    """A connection that this rank has opened and whose answer is still to come."""

    peer: int
    sock: socket.socket
    hello: Hello


class Links:
    """Links by the identity of the peer's engine; they outlive the groups that made them."""

    def __init__(self, identity: str, host: str, options: NicOptions, listener: Listener) -> None:
        self._identity = identity
        self._host = host
        self._options = options
        self._listener = listener
        self._links: dict[str, int] = {}
        self._shared: set[str] = set()

    def by_rank(self, meeting: Meeting, rank: int) -> list[int]:
        """The engine's number of the link to each rank, -1 at `rank` itself."""
        return [
            -1 if peer == rank else self._links[record.engine]
            for peer, record in enumerate(meeting.records)
        ]

    def all_shared(self, meeting: Meeting, rank: int) -> bool:
        """Whether every link of the group is shared memory."""
        others = (r.engine for peer, r in enumerate(meeting.records) if peer != rank)
        return all(engine in self._shared for engine in others)

    def connect(self, engine: _native.Engine, meeting: Meeting, rank: int, deadline: float) -> None:
        """Make the links that are missing: call the higher ranks, be called by the lower ones.

        `deadline` is of time.monotonic(). Raises PeerError when a rank goes away, TimeoutError when
        one does not come, LinkError when no rail leads to it.
        """
        missing: dict[int, Record] = {}
        for peer, record in enumerate(meeting.records):
            known = self._links.get(record.engine)
            if peer != rank and (known is None or not engine.link_alive(known)):
                missing[peer] = record
                self._links.pop(record.engine, None)
                self._shared.discard(record.engine)
        peers = {record.engine: peer for peer, record in missing.items()}
        jobs = {identity: meeting.job((self._identity, identity)) for identity in peers}
        calls = [
            self._call(engine, meeting, peer, rail, deadline)
            for peer, record in missing.items()
            if peer > rank
            for rail in range(self._rails_to(record))
        ]
        expected = {
            (record.engine, rail): meeting.token(record.engine, self._identity)
            for peer, record in missing.items()
            if peer < rank
            for rail in range(self._rails_to(record))
        }
        for sock, theirs in self._listener.accept(expected, jobs, deadline):
            ours = self._hello(engine, sock.family == socket.AF_UNIX, theirs.rail, "")
            send_hello(sock, ours, jobs[theirs.engine])
            peer = peers[theirs.engine]
            self._add_rail(engine, missing[peer], peer, sock, ours, theirs, jobs[theirs.engine])
        for made in calls:
            record = missing[made.peer]
            job = jobs[record.engine]
            made.sock.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                theirs = receive_hello(made.sock, job)
            except (OSError, SlacklineError) as error:
                raise PeerError(
                    f"rank {made.peer} closed the connection during the rendezvous: {error}",
                    rank=rank,
                    peer=made.peer,
                ) from error
            self._add_rail(engine, record, made.peer, made.sock, made.hello, theirs, job)

    def _rails_to(self, record: Record) -> int:
        return 1 if self._shares_memory_with(record) else self._options.connections

    def _shares_memory_with(self, record: Record) -> bool:
        return "shm" in self._options.rails and record.host == self._host

    def _call(
        self, engine: _native.Engine, meeting: Meeting, peer: int, rail: int, deadline: float
    ) -> _Call:
        record = meeting.records[peer]
        shared = self._shares_memory_with(record)
        if shared:
            sock = call(f"\0slackline-{record.engine}", deadline)
        elif "tcp" in self._options.rails:
            near = record.host == self._host and self._options.interface is None
            sock = call((("127.0.0.1",) if near else record.addresses, record.port), deadline)
        else:
            raise LinkError(
                f"no rail leads to rank {peer}: rails are {', '.join(self._options.rails)} and it "
                "does not share memory with this one",
                peer=peer,
            )
        hello = self._hello(engine, shared, rail, meeting.token(self._identity, record.engine))
        send_hello(sock, hello, meeting.job((self._identity, record.engine)))
        return _Call(peer, sock, hello)

    def _hello(self, engine: _native.Engine, shared: bool, rail: int, token: str) -> Hello:
        hello = Hello(engine=self._identity, token=token, rail=rail)
        if shared:
            hello.arena_bytes = engine.arena_bytes
            hello.ring = engine.new_ring()
            hello.fds = [engine.arena_fd, engine.doorbell_fd]
        return hello

    def _add_rail(
        self,
        engine: _native.Engine,
        record: Record,
        peer: int,
        sock: socket.socket,
        ours: Hello,
        theirs: Hello,
        job: int,
    ) -> None:
        identity = record.engine
        if identity not in self._links:
            self._links[identity] = engine.add_link(f"engine {identity[:8]}")
        link = self._links[identity]
        sock.setblocking(False)
        if sock.family == socket.AF_UNIX:
            _log.info("link to rank %d: shared memory", peer)
            self._shared.add(identity)
            arena_fd, doorbell_fd = theirs.fds
            size = theirs.arena_bytes
            engine.add_shm_rail(
                link, arena_fd, size, doorbell_fd, sock.detach(), ours.ring, theirs.ring
            )
            return
        _log.info("link to rank %d: tcp %s", peer, sock.getpeername())
        for fd in theirs.fds:
            os.close(fd)
        far = record.host != self._host
        checks = {"wire": far, "all": True, "none": False}[self._options.checksums]
        engine.add_rail(link, theirs.rail, "tcp", sock.detach(), job, checks)
