"""The connections of one engine: listener, links to peers, TLS proxy, and their threads.

Door (listener)  ──connection──>  Links  ──rails──>  engine
Keeper (event loop thread) runs both and dials    <── events (thread) ── engine: "lost", "down"
Relay (TLS proxy thread), only with TLS

A link is everything between two engines; each link is made of one or more rails (connections).
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import slackline._native as _native
from slackline.faults import parse_all
from slackline.nic._carrier import Site
from slackline.nic._door import Door
from slackline.nic._injector import Injector
from slackline.nic._keeper import Keeper
from slackline.nic._line import control_by
from slackline.nic._links import Links
from slackline.nic._options import NicOptions
from slackline.nic._paths import local_interfaces
from slackline.nic._relay import Relay
from slackline.nic._rendezvous import Meeting, Record, host_identity, read_key
from slackline.nic._tls import Identity

__all__ = ["Network"]


class Network:
    """The connections of one engine.

    The listener is open from the start. Everything else starts with the engine, in `start`.
    """

    def __init__(self, engine_name: str, options: NicOptions, *, key: bytes | None = None) -> None:
        """Open the listener; raise UsageError if an option cannot be satisfied.

        The checked options are the interfaces, the key file, TLS and the congestion control. `key`
        replaces the key file.
        """
        self._name, self._options = engine_name, options
        self.host = host_identity()
        self.key = read_key(options.key) if key is None else key
        self._identity = Identity(engine_name) if options.tls == "require" else None
        interfaces = local_interfaces(options.interfaces)
        if options.congestion:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                control_by(probe, options.congestion)
        self._door = Door(engine_name, interfaces, chosen=bool(options.interfaces))
        self._keeper = Keeper()
        self._relay: Relay | None = None
        self._links: Links | None = None
        self._events: threading.Thread | None = None

    def record(self, device_bytes: int = 0) -> Record:
        """Return this engine's endpoint descriptor for the rendezvous with the other ranks."""
        return Record(
            engine=self._name,
            host=self.host,
            interfaces=self._door.interfaces,
            chosen=bool(self._options.interfaces),
            options=self._options.agreed(),
            device_bytes=device_bytes,
        )

    @property
    def keeper(self) -> Keeper:
        """The connection manager: the event loop thread that `start` starts."""
        return self._keeper

    def start(
        self, engine: _native.Engine, heed: Callable[[_native.RailEvent], None] | None = None
    ) -> None:
        """Begin to accept connections and to handle the events of the engine's rails.

        `heed` gets every event too, on the event thread.
        """
        if self._identity is not None:
            self._relay = Relay()
        site = Site(
            engine_name=self._name,
            engine=engine,
            keeper=self._keeper,
            identity=self._identity,
            relay=self._relay,
            congestion=self._options.congestion,
        )
        injector = Injector(parse_all(self._options.faults), engine.set_fault)
        self._links = Links(site, self.host, self._options, self._door, injector)
        self._keeper.start()
        self._keeper.post(self._links.start)
        self._events = threading.Thread(
            target=self._follow,
            args=(engine, self._links, heed),
            name="slackline-events",
            daemon=True,
        )
        self._events.start()

    def connect(self, meeting: Meeting, rank: int, deadline: float) -> tuple[list[int], bool]:
        """Make the missing links to all ranks and wait for them; see Links.connect."""
        assert self._links is not None
        return self._links.connect(meeting, rank, deadline)

    def close(self) -> None:
        """Close all connections and end their threads; the engine must be closed."""
        if self._events is not None:
            self._events.join()
        if self._relay is not None:
            self._relay.stop()
        self._keeper.stop()
        self._door.close()

    def _follow(
        self,
        engine: _native.Engine,
        links: Links,
        heed: Callable[[_native.RailEvent], None] | None,
    ) -> None:
        """Pass the engine's rail events on until the engine is closed."""
        while (event := engine.next_event()) is not None:
            if heed is not None:
                heed(event)
            self._keeper.post(links.happened, event)
