"""The connections of one engine: listener, links to peers, TLS proxy, and their threads.

Listener  ──connection──>  Links  ──rails──>  engine
ConnectionManager (event loop thread) runs both and dials  <── events (thread) ── engine
TlsProxy (thread), only with TLS

A link is everything between two engines; each link is made of one or more rails (connections).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import threading
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import slackline._native as _native
from slackline._lazy import collection_paused
from slackline.errors import ClosedError, UsageError
from slackline.nic._limits import run_all
from slackline.nic._options import NicOptions
from slackline.nic.connect._address_space import left_address_space
from slackline.nic.connect._addresses import Interface, local_interfaces, open_monitor, still_there
from slackline.nic.connect._connection_manager import ConnectionManager
from slackline.nic.connect._listener import Listener
from slackline.nic.connect._rendezvous import (
    EndpointDescriptor,
    Rendezvous,
    host_identity,
    kernel_checksums,
    read_key,
)
from slackline.nic.connect._sockets import check_congestion, ready

if TYPE_CHECKING:
    from slackline.nic.connect._injector import Injector
    from slackline.nic.connect._links import Links
    from slackline.nic.connect._rail_handle import LocalContext
    from slackline.nic.connect._tls import Identity
    from slackline.nic.connect._tls_proxy import TlsProxy

__all__ = ["Network", "load_links"]

_log = logging.getLogger("slackline.nic")

_SETTLE_S = 0.1
_MESSAGE_BYTES = 1 << 16


def load_links() -> tuple[type[Links], type[LocalContext]]:
    """Import all modules that links need, so that neither the first link nor a failure waits."""
    with collection_paused():
        from slackline.nic.connect._links import Links
        from slackline.nic.connect._rail_handle import LocalContext
    return Links, LocalContext


class Network:
    """The connections of one engine.

    The listener is open from the start. Links begin with the first group of several ranks, all else
    with the engine, in `start`.
    """

    def __init__(
        self,
        engine_name: str,
        options: NicOptions,
        *,
        key: bytes | None = None,
        anywhere: bool = True,
    ) -> None:
        """Open the listener; raise UsageError if an option cannot be satisfied.

        The checked options are the interfaces, the key file, TLS and the congestion control. `key`
        replaces the key file. Without `anywhere`, the engine connects only to addresses that the
        peer has connected from, and to no other address that the peer names.
        """
        self._name, self._options, self._anywhere = engine_name, options, anywhere
        self.host = host_identity()
        self._address_space = left_address_space()
        self.key = read_key(options.key) if key is None else key
        self._identity: Identity | None = None
        if options.tls == "require":
            from slackline.nic.connect._tls import Identity  # Most jobs do not encrypt.

            self._identity = Identity(engine_name)
        interfaces = self._addresses()
        check_congestion(options.congestion)
        self._listener = Listener(engine_name, interfaces)
        self._manager = ConnectionManager()
        self._tls_proxy: TlsProxy | None = None
        self._engine: _native.Engine | None = None
        """The engine, from `start` to `close`."""
        self._making = threading.Lock()
        self._links: Links | None = None
        self._events: threading.Thread | None = None

    def descriptor(self, device_bytes: int = 0, arena_bytes: int = 0) -> EndpointDescriptor:
        """Return this engine's endpoint descriptor for the rendezvous with the other ranks.

        `arena_bytes` is the size of the engine's arena; 0 if the engine has not started.
        """
        self._listener.published = self._listener.interfaces
        return EndpointDescriptor(
            engine=self._name,
            host=self.host,
            interfaces=self._listener.interfaces,
            chosen=bool(self._options.interfaces),
            options=self._options.agreed(),
            device_bytes=device_bytes,
            processors=sum(1 << processor for processor in os.sched_getaffinity(0)),
            kernels=kernel_checksums(),
            address_space=self._address_space,
            arena_bytes=arena_bytes or self._options.arena_bytes,
            has_arena=arena_bytes > 0,
        )

    @property
    def manager(self) -> ConnectionManager:
        """The connection manager: the event loop thread that `start` starts."""
        return self._manager

    def start(
        self, engine: _native.Engine, heed: Callable[[_native.RailEvent], None] | None = None
    ) -> None:
        """Begin to handle the events of the engine's rails; `heed` gets every event too.

        `heed` is called on the event thread.
        """
        self._engine = engine
        self._manager.start()
        self._manager.post(lambda: self._manager.spawn(self._watch_addresses()))
        events = threading.Thread(
            target=self._follow, args=(engine, heed), name="slackline-events", daemon=True
        )
        events.start()
        self._events = events

    def _linked(self, rank: int) -> Links:
        """Return the links; the first call makes them and begins to accept connections."""
        with self._making:
            if self._engine is None:
                raise ClosedError("the nic is closed", rank=rank)
            if self._links is None:
                self._links = self._new_links(self._engine)
                self._manager.post(self._links.start)
            return self._links

    def _new_links(self, engine: _native.Engine) -> Links:
        # A group of one rank needs no links, and their modules take long to import.
        links, local_context = load_links()
        if self._identity is not None:
            from slackline.nic.connect._tls_proxy import TlsProxy  # Most jobs do not encrypt.

            self._tls_proxy = TlsProxy()
        context = local_context(
            engine_name=self._name,
            engine=engine,
            manager=self._manager,
            identity=self._identity,
            tls_proxy=self._tls_proxy,
            interfaces=lambda: self._listener.interfaces,
            congestion=self._options.congestion,
            anywhere=self._anywhere,
        )
        injector = _injector(self._options.faults, engine)
        return links(context, self.host, self._options, self._listener, injector)

    def connect(
        self,
        rendezvous: Rendezvous,
        rank: int,
        needed: Collection[int],
        deadline: float,
        glance: Callable[[], None] | None = None,
        *,
        job: Sequence[int] | None = None,
    ) -> tuple[list[int], bool]:
        """Add links to all ranks, connect the needed links and wait for them; see Links.connect."""
        if self._engine is None:
            raise ClosedError("the nic is closed", rank=rank)
        if len(rendezvous.descriptors) == 1 and not self._options.faults:
            return [-1], True
        links = self._linked(rank)
        return links.connect(rendezvous, rank, needed, deadline, glance, job=job)

    def prepare(self, links: Sequence[int]) -> None:
        """Begin to connect those of `links` that this end dials; the call never blocks.

        Does nothing once the connections are closed.
        """
        if (all_links := self._links) is not None:
            self._manager.post(all_links.prepare, links)

    def forget(self, links: Sequence[int], code: int) -> None:
        """Drop the links that only a group that has not opened has made; see Links.forget."""
        if (all_links := self._links) is not None:
            self._manager.post(all_links.forget, links, code)

    def left(self, links: Sequence[int]) -> None:
        """Note that a group with the links that `connect` has returned is closed; see Links.left.

        The call never blocks.
        """
        if (all_links := self._links) is not None:
            self._manager.post(all_links.left, links)

    def close(self) -> None:
        """Close all connections and end the threads that serve them; close the engine before.

        After a `start` that failed, only the parts that did start are closed.
        """
        with self._making:
            self._engine = None  # Nobody makes links from now on.
        steps = list[Callable[[], object]]()
        if self._events is not None:
            steps.append(self._events.join)
        if self._tls_proxy is not None:
            steps.append(self._tls_proxy.stop)
        steps += [self._manager.stop, self._listener.close]
        if self._links is not None:
            steps.append(self._links.release)
        self._links = self._events = self._tls_proxy = None
        run_all(steps)

    async def _watch_addresses(self) -> None:
        """Listen at addresses that this host gets later, and tell the peers of any change."""
        try:
            monitor = open_monitor()
        except OSError as error:
            _log.warning("NICs that are plugged in later will not be used: %s", error)
            return
        with monitor:
            while True:
                self._update_addresses()
                await ready(monitor)
                await asyncio.sleep(_SETTLE_S)  # A new NIC gets its addresses one after the other.
                _drain(monitor)

    def _update_addresses(self) -> None:
        try:
            kept = still_there(self._listener.interfaces)
            found = self._addresses()
        except UsageError as error:
            _log.warning("this host's addresses are not known for now: %s", error)
            return
        if self._listener.update(kept, found):
            _log.info(
                "this host's addresses: %s", ", ".join(i.address for i in self._listener.interfaces)
            )
            if (links := self._links) is not None:
                links.addresses_changed()

    def _addresses(self) -> tuple[Interface, ...]:
        """Return the addresses that this host has now and that the options let peers use."""
        options = self._options
        near = options.listen == "loopback" and not options.aggregator
        return local_interfaces(options.interfaces, loopback=near)

    def _follow(
        self,
        engine: _native.Engine,
        heed: Callable[[_native.RailEvent], None] | None,
    ) -> None:
        """Pass the engine's rail events on until the engine is closed."""
        while (event := engine.next_event()) is not None:
            if heed is not None:
                heed(event)
            if (links := self._links) is not None:  # Without links no rail has events.
                self._manager.post(links.happened, event)


def _injector(faults: str, engine: _native.Engine) -> Injector | None:
    """Return the injector of the faults that the options name; None if they name none."""
    if not faults:
        return None
    from slackline.faults import parse_all  # Most jobs inject no faults.
    from slackline.nic.connect._injector import Injector

    return Injector(parse_all(faults), engine.set_fault)


def _drain(monitor: socket.socket) -> None:
    """Read and drop all messages of a netlink monitor: each says only that addresses may change."""
    while True:
        try:
            monitor.recv(_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS:  # Too many messages came: some were dropped.
                raise
