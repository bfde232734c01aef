"""The server of an aggregation node: requests of groups, and the services that it begins."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from ipaddress import ip_interface
from typing import Any

from slackline.errors import SlacklineError, UsageError
from slackline.nic.aggregator._options import AggregatorOptions
from slackline.nic.aggregator._service import Service
from slackline.nic.connect import (
    Admissions,
    ConnectionManager,
    EndpointDescriptor,
    HandshakeChannel,
    HandshakeMessage,
    Refusals,
    control_congestion,
    fresh_nonce,
    is_named,
    read_key,
    ready,
)
from slackline.nic.host import local_interfaces, show_address
from slackline.nic.offload import (
    AggregationRequest,
    AggregationResponse,
    EthernetNodes,
    Nodes,
    Proof,
    read_descriptor,
    rendezvous_with_aggregator,
)
from slackline.units import count, format_bytes, show_bytes

__all__ = ["Aggregator"]

_log = logging.getLogger("slackline.nic.aggregator")

_PATIENCE_S = 5.0
_BREATH_S = 0.1
_BACKLOG = 64
_NO_JOB = 0


class Aggregator:
    """A server that sums the tensors of groups of ranks.

    The server listens from its construction on, and serves from `start` to `close`.
    """

    def __init__(self, options: AggregatorOptions) -> None:
        """Open the listening socket; raise UsageError if an option cannot be satisfied.

        The checked options are the key, the address, the congestion control and the circuit.
        """
        self.options = options
        self._nodes = _nodes(options)
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
        self._refusals = Refusals(_log, "turned away %s: %s")
        self._services: set[Service] = set()
        self._lock = threading.Lock()
        self._served, self._added_bytes = 0, 0

    @property
    def address(self) -> tuple[str, int]:
        """The host and port that the server listens at."""
        host, port = self._socket.getsockname()[:2]
        return host, port

    def idle_reason(self, least_bytes: int) -> str:
        """Return a sentence if all services that have ended added less than this; else ""."""
        with self._lock:
            served, added_bytes = self._served, self._added_bytes
        if not served:
            return "no group was served"
        if added_bytes >= least_bytes:
            return ""
        return (
            f"this node has added {show_bytes(added_bytes)} for the groups that it served, "
            f"{served} in all, and not {format_bytes(least_bytes)}: their operations took other "
            "plans; SLACKLINE_PLAN=star sends every all_reduce to the node"
        )

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
        if self._nodes is not None:
            self._nodes.close()

    async def _accept(self) -> None:
        """Accept connections for ever, and serve each by a task of its own."""
        while True:
            await ready(self._socket)
            try:
                caller, address = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                continue
            except OSError as error:
                why = f"cannot accept a connection: {error.strerror}"
                self._refusals.add_from("an address that is not known yet", why)
                await asyncio.sleep(_BREATH_S)
                continue
            channel = HandshakeChannel(caller)
            work = self._welcome(channel, address[0])
            for oldest in self._admissions.admit(self._manager, channel, work):
                self._refusals.add(oldest.sock, "it was the oldest of too many that wait")

    async def _welcome(self, channel: HandshakeChannel, whence: str) -> None:
        """Serve one request within a time limit, and log its failure, if any."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._answer_request(channel, whence)
        except TimeoutError:
            self._refusals.add_from(whence, "no request arrived in time")
        except (OSError, SlacklineError) as error:
            if not channel.left:
                self._refusals.add_from(whence, str(error))
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
                refusal=f"the limit of {count(self.options.groups, 'group')} is reached"
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
            nonces=nonces,
            most_bytes=self.options.memory_bytes // 2,
            adds_trees=self._nodes is None,
            descriptor=service.descriptor,
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
            self._served += 1
            self._added_bytes += service.added_bytes


def _nodes(options: AggregatorOptions) -> Nodes | EthernetNodes | None:
    """Return the factory of the nodes that add for the groups; None if the engine adds."""
    if options.node:
        return EthernetNodes(
            options.interface, options.node_mac, options.node_patience, hashed=options.node_hash
        )
    if options.nic == "software":
        return None
    return Nodes(options.nic, options.workers, options.circuit)


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
