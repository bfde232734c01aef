"""The worker's side of an aggregator: connecting, agreeing with the other ranks, fallback.

An aggregator is a node that adds for all ranks of a group, which are its workers. The plan that
uses an aggregator is called "star".
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import socket
import time
from collections.abc import Callable

import slackline._native as _native
from slackline.errors import LinkError, SlacklineError
from slackline.nic._host_port import parse_address
from slackline.nic._options import NicOptions
from slackline.nic.collectives import STAR, PlanBook
from slackline.nic.connect import (
    Attempt,
    HandshakeChannel,
    HandshakeMessage,
    Network,
    OpeningStore,
    Rendezvous,
    check_kernels,
    dial,
    fresh_nonce,
)
from slackline.nic.offload._aggregation_protocol import (
    AggregationRequest,
    AggregationResponse,
    Proof,
    rendezvous_with_aggregator,
    write_descriptor,
)
from slackline.plan.collective import Collective

__all__ = ["Star", "reach"]

_log = logging.getLogger("slackline.nic")

_STORE_KEY = "slackline/aggregator/{epoch}"
"""The store's key of the aggregator's response; the epoch in the key excludes responses to earlier
groups."""
_CONNECT_S = 1.0
_REACH_S = 5.0
_NO_JOB = 0
_FALLBACK = "mesh"
"""The plan of the fallback group, which sums in rank order like an aggregator and so gives
bit-identical results.
"""


class Star:
    """The group of workers and aggregator, and the fallback group of the workers alone."""

    def __init__(
        self,
        group: _native.Group,
        fallback: _native.Group,
        link: int,
        most_bytes: int,
        *,
        adds_trees: bool,
    ) -> None:
        self.group, self._fallback, self._link = group, fallback, link
        self.most_bytes, self.adds_trees = most_bytes, adds_trees

    def lost(self) -> str:
        """Return the reason why the aggregator is no longer used; empty while it is in use."""
        return self.group.broken()

    def close(self, timeout_ns: int) -> None:
        """Close the aggregator's group and the fallback group, each within `timeout_ns`."""
        self.group.close(timeout_ns)
        self._fallback.close(timeout_ns)

    def abort(self, reason: str) -> None:
        """Abort the aggregator's group and the fallback group."""
        self.group.abort(reason)
        self._fallback.abort(reason)

    def give_up(self, engine: _native.Engine, reason: str) -> None:
        """Close both groups and the link, because another rank cannot reach the aggregator."""
        self.close(0)
        engine.unreachable(self._link, reason)


def reach(
    engine: _native.Engine,
    network: Network,
    meeting: OpeningStore,
    rendezvous: Rendezvous,
    rank: int,
    links: list[int],
    book: PlanBook,
    options: NicOptions,
    largest: Callable[[int, int], None],
) -> Star | None:
    """Connect this rank to the aggregator and agree with all ranks on its use; a collective call.

    Returns None on every rank, and logs the reason, if any rank cannot reach the aggregator.
    `largest(address, count)` must be an all_reduce to the maximum of 64-bit integers over the
    group.
    """
    why, star = "", None
    try:
        response = _response(network, meeting, rendezvous, options.aggregator)
        if response.refusal:
            why = response.refusal
        else:
            star = _open(engine, network, response, rendezvous, rank, links, book)
    except (SlacklineError, OSError, TimeoutError) as error:
        why = f"rank {rank} cannot reach it: {str(error) or 'no answer in time'}"
    failed = (ctypes.c_int64 * len(rendezvous.descriptors))()
    failed[rank] = star is None
    largest(ctypes.addressof(failed), len(failed))
    if not any(failed):
        _log.info("the aggregator %s is reached", options.aggregator)
        return star
    others = ", ".join(f"rank {r}" for r, bad in enumerate(failed) if bad)
    why = why or f"{others} cannot reach it"
    _log.warning("the aggregator %s is not used: %s", options.aggregator, why)
    if star is not None:
        star.give_up(engine, why)
    return None


def _response(
    network: Network, meeting: OpeningStore, rendezvous: Rendezvous, where: str
) -> AggregationResponse:
    """Return the aggregator's response, which rank 0 passes on through the store."""
    key = _STORE_KEY.format(epoch=rendezvous.epoch)
    if meeting.rank == 0:
        try:
            response = network.manager.run(_request(network, rendezvous, where))
        except (SlacklineError, OSError, TimeoutError) as error:
            response = AggregationResponse(
                refusal=f"rank 0 cannot reach it: {str(error) or 'no answer in time'}"
            )
        meeting.set(key, response.write().decode())
        return response
    step = "the aggregator's answer"
    return AggregationResponse.read(meeting.get(key, of=0, step=step))


async def _request(network: Network, rendezvous: Rendezvous, where: str) -> AggregationResponse:
    """Send the group's request to the aggregator and return the response."""
    host, port = parse_address(where)
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    channel = HandshakeChannel(await dial([_attempt(*each[4]) for each in found], _CONNECT_S))
    try:
        async with asyncio.timeout(_REACH_S):
            request = AggregationRequest(nonce=fresh_nonce(), workers=len(rendezvous.descriptors))
            await channel.send(HandshakeMessage(payload=request.write()), _NO_JOB)
            _, message = await channel.receive()
            proof = Proof(
                network.key,
                request.nonce,
                AggregationRequest.read(message.payload).nonce,
                calls=True,
            )
            for descriptor in rendezvous.descriptors:
                await channel.send(
                    HandshakeMessage(payload=proof.seal(write_descriptor(descriptor))), _NO_JOB
                )
            _, message = await channel.receive()
            return AggregationResponse.read(proof.open(message.payload))
    finally:
        channel.close()


def _attempt(address: str, port: int, flow: int = 0, scope: int = 0) -> Attempt:
    """Return the connection attempt to a socket address, IPv4 or IPv6."""
    return Attempt(address=address.partition("%")[0], port=port, scope=scope)


def _open(
    engine: _native.Engine,
    network: Network,
    response: AggregationResponse,
    rendezvous: Rendezvous,
    rank: int,
    links: list[int],
    book: PlanBook,
) -> Star:
    """Connect to the aggregator, and open its group and the fallback group."""
    star = rendezvous_with_aggregator(network.key, response, rendezvous.descriptors)
    check_kernels([each.kernels for each in star.descriptors], rank)
    if engine.uses_epoch(star.epoch):
        raise LinkError("another group of this rank has the number drawn for the aggregator's")
    aggregator = len(rendezvous.descriptors)
    all_links, _ = network.connect(star, rank, (aggregator,), time.monotonic() + _REACH_S)
    network.left(all_links)  # The workers' own group has their links for longer.
    group = engine.open_group(star.epoch, rank, all_links, True)
    fallback = engine.open_group(rendezvous.fallback_epoch, rank, links, True)
    group.fall_back(fallback, book.program(Collective.ALL_REDUCE, _FALLBACK))
    book.program(Collective.ALL_REDUCE, STAR)
    link, most = all_links[-1], response.most_bytes
    return Star(group, fallback, link, most, adds_trees=response.adds_trees)
