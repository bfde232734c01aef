"""An aggregation node in software: the server, and one engine for each group that it serves.

Aggregator   listens at one address; rank 0 of each group sends a request to it
Service      the engine of one group, with listener, links and reduction (native, serve.cc)

The ranks of a served group are called workers.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

import slackline._native as _native
from slackline.env import NICS
from slackline.errors import SlacklineError, UsageError
from slackline.nic._host_port import show_address
from slackline.nic._options import NicOptions
from slackline.nic.collectives import STAR, compile_program
from slackline.nic.connect import (
    Admissions,
    ConnectionManager,
    EndpointDescriptor,
    HandshakeChannel,
    HandshakeMessage,
    Network,
    Rendezvous,
    control_congestion,
    fresh_nonce,
    is_named,
    local_interfaces,
    read_key,
    ready,
)
from slackline.nic.offload._aggregation_protocol import (
    AggregationRequest,
    AggregationResponse,
    Proof,
    read_descriptor,
    rendezvous_with_aggregator,
)
from slackline.nic.offload._circuit_nic import Nodes
from slackline.nic.offload._device import DeviceThread
from slackline.plan.collective import Collective, part

__all__ = ["Aggregator", "AggregatorOptions"]

_log = logging.getLogger("slackline.aggregator")

_PATIENCE_S = 5.0
_RENDEZVOUS_S = 30.0
_CLOSE_NS = 1_000_000_000
_SPIN_MICROSECONDS = 0
_BREATH_S = 0.1
_BACKLOG = 64
_SMALLEST_MEMORY = 16 << 20
_NO_JOB = 0
_WHOLE = 0xFFFFFFFF
_PASSED_ON = ("wire_segment_bytes", "eager_bytes", "connections", "checksums", "tls")


@dataclass(frozen=True, kw_only=True)
class AggregatorOptions:
    """Options of an aggregation node."""

    host: str
    """The address to listen at; "0.0.0.0" listens at all IPv4 addresses, "::" at all addresses."""
    port: int
    """The port to listen at; 0 lets the system choose."""
    workers: int
    """The largest number of workers of a group."""
    groups: int = 32
    """The largest number of groups at a time. Each has an engine, memory and threads of its own."""
    memory_bytes: int = 1 << 30
    """The memory of each group for unfinished results, in bytes."""
    nic: str = "software"
    """The adder: "software" (the engine), "circuit" (a simulated aggregation node), or "twin" (the
    circuit's bit-exact model in Python)."""
    circuit: str = ""
    """Sizes of the circuit or twin, for example "lanes=1,slots=4,payload=64". The defaults are
    lanes=4, slots=4 and payload=4096 (bytes)."""
    onset: int = 1
    """The number of segments (frames of a message) that must have arrived from every worker before
    reduction starts; 0 waits for whole messages (store-and-forward).
    """
    congestion: str = "auto"
    """The kernel's TCP congestion control, or "system" or "auto", as for `NicOptions`."""
    key: Path | None = None
    """A file with a secret key that the workers share."""
    without_key: bool = False
    """Serve without a key at an address that other hosts reach; any host may then use the node."""

    def __post_init__(self) -> None:
        if not 2 <= self.workers <= 255:
            raise UsageError(f"workers must be 2 to 255, not {self.workers}")
        if self.groups < 1:
            raise UsageError(f"groups must be at least 1, not {self.groups}")
        if self.nic not in NICS:
            raise UsageError(f"nic must be one of {', '.join(NICS)}, not {self.nic!r}")
        if self.memory_bytes < _SMALLEST_MEMORY:
            raise UsageError(
                f"memory must be at least {_SMALLEST_MEMORY} bytes, not {self.memory_bytes}"
            )
        if not 0 <= self.onset < _WHOLE:
            raise UsageError(f"onset must be 0 to {_WHOLE - 1}, not {self.onset}")


class Aggregator:
    """A server that sums the tensors of groups of ranks.

    The server listens from its construction on, and serves from `start` to `close`.
    """

    def __init__(self, options: AggregatorOptions) -> None:
        """Open the listening socket; raise UsageError if an option cannot be satisfied.

        The checked options are the key, the address, the congestion control and the circuit.
        """
        self.options = options
        software = options.nic == "software"
        self._nodes = None if software else Nodes(options.nic, options.workers, options.circuit)
        self._key = read_key(options.key)
        self._interfaces = _interfaces(options.host)
        if not (options.key or options.without_key or _on_loopback(self._interfaces)):
            raise UsageError(
                f"an aggregator at {options.host} needs a key, since other hosts reach that "
                "address: give --key FILE, or --without-key to serve them all"
            )
        try:
            self._socket = _listen(options.host, options.port)
        except OSError as error:
            where = show_address(options.host, options.port)
            raise UsageError(f"cannot listen at {where}: {error.strerror or error}") from error
        if is_named(options.congestion):
            control_congestion(self._socket, options.congestion)
        self._manager = ConnectionManager()
        self._admissions = Admissions()
        self._services: set[Service] = set()
        self._lock = threading.Lock()

    @property
    def address(self) -> tuple[str, int]:
        """The host and port that the server listens at."""
        host, port = self._socket.getsockname()[:2]
        return host, port

    def start(self) -> None:
        """Begin to serve groups, on background threads."""
        self._socket.setblocking(False)
        self._manager.start()
        self._manager.post(lambda: self._manager.spawn(self._accept()))

    def close(self) -> None:
        """End the service of every group; the workers continue without the aggregator."""
        self._manager.stop()
        self._socket.close()
        with self._lock:
            services = list(self._services)
        for service in services:
            service.end("the aggregator was stopped")
        for service in services:
            service.join()

    async def _accept(self) -> None:
        """Accept connections for ever, and serve each by a task of its own."""
        while True:
            await ready(self._socket)
            try:
                caller, address = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                continue
            except OSError as error:
                _log.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(_BREATH_S)
                continue
            channel = HandshakeChannel(caller)
            self._admissions.admit(self._manager, channel, self._welcome(channel, address[0]))

    async def _welcome(self, channel: HandshakeChannel, whence: str) -> None:
        """Serve one request within a time limit, and log its failure, if any."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._answer_request(channel, whence)
        except TimeoutError:
            _log.warning("turned away %s: no request arrived in time", whence)
        except (OSError, SlacklineError) as error:
            if not channel.left:
                _log.warning("turned away %s: %s", whence, error)
        finally:
            channel.close()

    async def _answer_request(self, channel: HandshakeChannel, whence: str) -> None:
        """Read the request of a group's rank 0, and answer with an acceptance or a refusal."""
        _, message = await channel.receive()
        theirs = AggregationRequest.read(message.payload)
        ours = AggregationRequest(nonce=fresh_nonce(), workers=self.options.workers)
        await channel.send(HandshakeMessage(payload=ours.write()), _NO_JOB)
        proof = Proof(self._key, ours.nonce, theirs.nonce, calls=False)
        descriptors = []
        for _ in range(theirs.workers):
            _, message = await channel.receive()
            descriptors.append(read_descriptor(proof.open(message.payload)))
        if not 2 <= theirs.workers <= self.options.workers:
            response = AggregationResponse(
                refusal=f"a group must have 2 to {self.options.workers} workers, not "
                f"{theirs.workers}"
            )
        elif self._serves() >= self.options.groups:
            response = AggregationResponse(
                refusal=f"the limit of {self.options.groups} groups is reached"
            )
        elif self._nodes and (refusal := self._nodes.refusal(theirs.workers)):
            response = AggregationResponse(refusal=refusal)
        else:
            response = self._begin((theirs.nonce, ours.nonce), tuple(descriptors), whence)
        await channel.send(HandshakeMessage(payload=proof.seal(response.write())), _NO_JOB)

    def _begin(
        self, nonces: tuple[str, str], workers: tuple[EndpointDescriptor, ...], whence: str
    ) -> AggregationResponse:
        """Start the service of a new group; return the response, a refusal on an error."""
        try:
            service = Service(self.options, self._interfaces, workers, self._gone, self._nodes)
        except (SlacklineError, OSError, TypeError, ValueError) as error:
            _log.warning("cannot serve the %d workers of %s: %s", len(workers), whence, error)
            return AggregationResponse(refusal=f"this group cannot be served: {error}")
        response = AggregationResponse(
            nonces=nonces, most_bytes=self.options.memory_bytes // 2, descriptor=service.descriptor
        )
        with self._lock:
            self._services.add(service)
        service.start(rendezvous_with_aggregator(self._key, response, workers), whence)
        return response

    def _serves(self) -> int:
        """Return the number of groups being served; only the event loop's thread increases it."""
        with self._lock:
            return len(self._services)

    def _gone(self, service: Service) -> None:
        """Unregister a group's service that has ended."""
        with self._lock:
            self._services.discard(service)


class Service:
    """The engine that serves one group, from its rendezvous to its end."""

    def __init__(
        self,
        options: AggregatorOptions,
        interfaces: tuple[str, ...],
        workers: tuple[EndpointDescriptor, ...],
        on_end: Callable[[Service], None],
        nodes: Nodes | None,
    ) -> None:
        self._options, self._on_end, self._nodes = options, on_end, nodes
        theirs = workers[0].options
        if missing := [name for name in (*_PASSED_ON, "rails") if name not in theirs]:
            raise UsageError(
                f"the descriptors that the workers sent lack the fields {', '.join(missing)}"
            )
        given = {name: theirs[name] for name in _PASSED_ON}
        rails = tuple(r for r in _texts(theirs["rails"]) if r != "shm") or ("tcp",)
        nic = NicOptions(
            rails=rails,
            interfaces=interfaces,
            congestion=options.congestion,
            **given,  # type: ignore[arg-type]
        )
        self._identity = secrets.token_hex(16)
        self._network = Network(self._identity, nic, key=b"", anywhere=bool(options.key))
        self.descriptor = replace(self._network.descriptor(), aggregates=True)
        self._engine = _native.Engine(
            arena_bytes=options.memory_bytes,
            wire_segment_bytes=nic.wire_segment_bytes,
            memory_segment_bytes=nic.memory_segment_bytes,
            eager_bytes=nic.eager_bytes,
            spin_microseconds=_SPIN_MICROSECONDS,
        )
        self._left: set[int] = set()
        self._size = len(workers)
        self._over, self._connected = threading.Event(), False
        self._why = ""
        self._thread: threading.Thread | None = None

    def start(self, rendezvous: Rendezvous, whence: str) -> None:
        """Connect to the workers and serve them, on a background thread."""
        self._network.start(self._engine, self._heed)
        self._thread = threading.Thread(
            target=self._serve, args=(rendezvous, whence), name="slackline-service", daemon=True
        )
        self._thread.start()

    def end(self, why: str) -> None:
        """Ask the service to end for the reason `why`; any thread may call."""
        self._why = self._why or why
        self._over.set()
        if not self._connected:
            self._network.manager.stop()  # Ends the wait for the workers.

    def join(self) -> None:
        """Wait for the end of the service."""
        assert self._thread is not None
        self._thread.join()

    def _serve(self, rendezvous: Rendezvous, whence: str) -> None:
        name = f"group {rendezvous.epoch:08x}"
        device_thread: DeviceThread | None = None
        try:
            deadline = time.monotonic() + _RENDEZVOUS_S
            workers = range(self._size)
            links, _ = self._network.connect(rendezvous, self._size, workers, deadline)
            self._connected = True
            group = self._engine.open_group(rendezvous.epoch, self._size, links, True)
            mine = part(Collective.ALL_REDUCE, STAR, self._size, self._size)
            if self._nodes is not None:
                group.attach(self._nodes.kind)
                device_thread = DeviceThread(
                    group, self._nodes.node(self._size, rendezvous.epoch), self._failed
                )
            program = compile_program(mine, offloads=self._nodes is not None)
            group.serve(program, self._options.onset or _WHOLE)
            _log.info("%s: %d workers, requested by %s", name, self._size, whence)
            self._over.wait()
        except SlacklineError as error:
            self.end(str(error))
        finally:
            counters = self._engine.counters()
            self._engine.close(_CLOSE_NS)
            if device_thread is not None:
                device_thread.join()
            self._network.close()
            self._on_end(self)
            added = f"{counters['bytes_reduced']} bytes added"
            if self._nodes is not None:
                added += f", {counters['device_frames_given']} frames by its {self._nodes.kind}"
            done = counters["operations"]
            _log.info("%s: over after %d operations, %s: %s", name, done, added, self._why)

    def _failed(self, why: str) -> None:
        self.end(f"its {self._options.nic} failed: {why}")

    def _heed(self, event: _native.RailEvent) -> None:
        """End the service when a worker is lost, or when all workers have left the group."""
        if event.what == "down":
            self.end(f"a worker is lost: {event.reason}")
        elif event.what == "left":
            self._left.add(event.link)
            if len(self._left) == self._size:
                self.end("every worker has closed the group")


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at a host's address; "::" takes IPv4 connections too."""
    family, _, _, _, where = _resolved(host, port)
    dual = where[0] == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(where, family=family, backlog=_BACKLOG, dualstack_ipv6=dual)


def _interfaces(host: str) -> tuple[str, ...]:
    """Return the interfaces that links may use: the interface with this address, or () for all."""
    try:
        address = str(_resolved(host, 0)[4][0]).partition("%")[0]
    except OSError as error:
        raise UsageError(f"{host!r} is no address to listen at: {error}") from error
    if address in ("0.0.0.0", "::"):
        return ()
    for interface in local_interfaces(()):
        if interface.address == address:
            return (f"{address}/{interface.prefix}",)
    raise UsageError(f"{host!r} is not an address of this host")


def _on_loopback(interfaces: tuple[str, ...]) -> bool:
    """Return whether links use addresses that no other host reaches."""
    return bool(interfaces) and all(ip_interface(each).is_loopback for each in interfaces)


def _resolved(host: str, port: int) -> tuple[Any, ...]:
    """Return the first answer of getaddrinfo for a host, preferring an IPv4 address."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return min(found, key=lambda each: each[0] != socket.AF_INET)


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(f"rails must be a list, not {value!r}")
    return tuple(str(each) for each in value)
