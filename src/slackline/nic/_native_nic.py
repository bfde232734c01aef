"""One process's native engine: its life, its links, and the groups on it."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from datetime import timedelta

import slackline._native as _native
from slackline.errors import ClosedError, LinkError, PeerError, UsageError
from slackline.nic._group import NativeGroup
from slackline.nic._handshake import Hello, Listener, call, receive_hello, send_hello
from slackline.nic._interface import Store
from slackline.nic._options import NicOptions
from slackline.nic._plans import PlanBook
from slackline.nic._rendezvous import Meeting, Record, host_identity, local_addresses, meet
from slackline.nic._transfer import Completions

__all__ = ["NativeNic"]

_log = logging.getLogger("slackline.nic")

_SPIN_MICROSECONDS = 50
_SPIN_CROWDED_MICROSECONDS = 4
_CLOSE_NS = 1_000_000_000


class NativeNic:
    """See slackline.nic.Nic. The engine starts with the first group and serves all groups."""

    def __init__(self, options: NicOptions | None = None) -> None:
        self.options = options or NicOptions()
        self.identity = uuid.uuid4().hex
        self._host = host_identity()
        self._addresses = local_addresses(self.options)
        self._listener = Listener(
            self.identity, (self.options.interface and self._addresses[0]) or ""
        )
        self._lock = threading.Lock()
        self._engine: _native.Engine | None = None
        self._completions: Completions | None = None
        self._links: dict[str, int] = {}
        self._shared: set[str] = set()
        self._groups: set[NativeGroup] = set()
        self._closed = False

    def open_group(self, store: Store, rank: int, size: int, *, timeout: timedelta) -> NativeGroup:
        if not 0 <= rank < size:
            raise UsageError(f"rank must be 0 to {size - 1}, not {rank}", rank=rank)
        with self._lock:
            if self._closed:
                raise ClosedError("the nic is closed", rank=rank)
            record = Record(
                engine=self.identity,
                host=self._host,
                addresses=self._addresses,
                port=self._listener.port,
                options=self.options.agreed(),
            )
            meeting = meet(store, rank, size, record)
            engine = self._start(meeting)
            self._connect(engine, meeting, rank, time.monotonic() + timeout.total_seconds())
            links = [
                -1 if peer == rank else self._links[other.engine]
                for peer, other in enumerate(meeting.records)
            ]
            shared = all(
                other.engine in self._shared
                for peer, other in enumerate(meeting.records)
                if peer != rank
            )
            book = PlanBook(rank, size, self.options, all_shared=shared)
            native = engine.open_group(meeting.epoch, rank, links, book.order == "rank")
            assert self._completions is not None
            group = NativeGroup(
                engine,
                native,
                book,
                self._completions,
                timeout=self.options.timeout or timeout,
                on_close=self._groups.discard,
            )
            self._groups.add(group)
        group.calibrate(timeout)
        return group

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for group in list(self._groups):
            group.close()
        if self._engine is not None:
            self._engine.close(_CLOSE_NS)
        if self._completions is not None:
            self._completions.join()
        self._listener.close()

    def _start(self, meeting: Meeting) -> _native.Engine:
        if self._engine is None:
            here = sum(other.host == self._host for other in meeting.records)
            crowded = here > len(os.sched_getaffinity(0))
            options = self.options
            self._engine = _native.Engine(
                arena_bytes=options.arena_bytes,
                wire_segment_bytes=options.wire_segment_bytes,
                memory_segment_bytes=options.memory_segment_bytes,
                eager_bytes=options.eager_bytes,
                checksums=options.checksums,
                spin_microseconds=_SPIN_CROWDED_MICROSECONDS if crowded else _SPIN_MICROSECONDS,
            )
            self._completions = Completions(self._engine)
        return self._engine

    def _connect(
        self, engine: _native.Engine, meeting: Meeting, rank: int, deadline: float
    ) -> None:
        """Make the links that are missing: call the higher ranks, be called by the lower ones."""
        missing = {
            peer: record
            for peer, record in enumerate(meeting.records)
            if peer != rank
            and not (record.engine in self._links and engine.link_alive(self._links[record.engine]))
        }
        job_of = {r.engine: meeting.job((self.identity, r.engine)) for r in missing.values()}
        called: list[tuple[int, Record, int, socket.socket, Hello]] = []
        for peer, record in missing.items():
            if peer < rank:
                continue
            shared = self._shares_memory_with(record)
            for rail in range(1 if shared else self.options.connections):
                sock = self._call(record, shared, deadline)
                hello = self._hello(
                    engine, shared, rail, meeting.token(self.identity, record.engine)
                )
                send_hello(sock, hello, job_of[record.engine])
                called.append((peer, record, rail, sock, hello))
        expected = {
            (record.engine, rail): meeting.token(record.engine, self.identity)
            for peer, record in missing.items()
            if peer < rank
            for rail in range(1 if self._shares_memory_with(record) else self.options.connections)
        }
        rank_of = {record.engine: peer for peer, record in missing.items()}
        for sock, theirs in self._listener.accept(expected, job_of, deadline):
            shared = sock.family == socket.AF_UNIX
            ours = self._hello(engine, shared, theirs.rail, "")
            send_hello(sock, ours, job_of[theirs.engine])
            self._add_rail(
                engine, theirs.engine, rank_of[theirs.engine], sock, ours, theirs, job_of
            )
        for peer, record, _, sock, ours in called:
            sock.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                theirs = receive_hello(sock, job_of[record.engine])
            except (OSError, LinkError) as error:
                raise PeerError(
                    f"rank {peer} closed the connection during the rendezvous: {error}",
                    rank=rank,
                    peer=peer,
                ) from error
            self._add_rail(engine, record.engine, peer, sock, ours, theirs, job_of)

    def _shares_memory_with(self, record: Record) -> bool:
        return "shm" in self.options.rails and record.host == self._host

    def _call(self, record: Record, shared: bool, deadline: float) -> socket.socket:
        if shared:
            return call(f"\0slackline-{record.engine}", deadline)
        if "tcp" not in self.options.rails:
            raise LinkError(
                f"no rail leads to the host of engine {record.engine}: rails are "
                f"{', '.join(self.options.rails)} and it does not share memory with this one"
            )
        same = record.host == self._host
        addresses = ("127.0.0.1",) if same and not self.options.interface else record.addresses
        return call((addresses, record.port), deadline)

    def _hello(self, engine: _native.Engine, shared: bool, rail: int, token: str) -> Hello:
        hello = Hello(engine=self.identity, token=token, rail=rail)
        if shared:
            hello.arena_bytes = engine.arena_bytes
            hello.ring = engine.new_ring()
            hello.fds = [engine.arena_fd, engine.doorbell_fd]
        return hello

    def _add_rail(
        self,
        engine: _native.Engine,
        identity: str,
        peer: int,
        sock: socket.socket,
        ours: Hello,
        theirs: Hello,
        job_of: dict[str, int],
    ) -> None:
        if theirs.rail == 0:
            self._links[identity] = engine.add_link(f"engine {identity[:8]}")
        link = self._links[identity]
        shared = sock.family == socket.AF_UNIX
        (self._shared.add if shared else self._shared.discard)(identity)
        _log.info(
            "link to rank %d: %s", peer, "shared memory" if shared else f"tcp {sock.getpeername()}"
        )
        sock.setblocking(False)
        if shared:
            arena_fd, doorbell_fd = theirs.fds
            engine.add_shm_rail(
                link,
                arena_fd,
                theirs.arena_bytes,
                doorbell_fd,
                sock.detach(),
                ours.ring,
                theirs.ring,
            )
        else:
            engine.add_stream_rail(link, sock.detach(), job_of[identity])
