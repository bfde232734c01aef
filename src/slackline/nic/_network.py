"""An engine's connections as a whole: what listens, calls, relays and watches, and its end.

Door  ──a caller──>  Links  ──rails──>  engine
Keeper (thread) runs both and dials    <── events (thread) ── engine: "lost", "down"
Relay (thread), with TLS
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
    """Listens from the beginning; the rest starts with the engine."""

    def __init__(self, engine_name: str, options: NicOptions, *, key: bytes | None = None) -> None:
        """Raises UsageError for an interface, a key, a certificate or a congestion control that
        cannot be had.
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
        """What the other ranks are told."""
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
        """Where conversations are held, once it has started."""
        return self._keeper

    def start(
        self, engine: _native.Engine, heed: Callable[[_native.RailEvent], None] | None = None
    ) -> None:
        """Let callers in, and follow what becomes of the engine's rails. `heed` is told as well, on
        a thread of its own.
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
        """See Links.connect."""
        assert self._links is not None
        return self._links.connect(meeting, rank, deadline)

    def close(self) -> None:
        """End everything; call it once the engine is closed."""
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
        while (event := engine.next_event()) is not None:
            if heed is not None:
                heed(event)
            self._keeper.post(links.happened, event)
