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
from slackline.errors import SlacklineError
from slackline.nic._addresses import parse_address
from slackline.nic._ask import Ask, Offer, Proof, meeting_of, write_record
from slackline.nic._handshake import Said, fresh_nonce
from slackline.nic._interface import Store
from slackline.nic._line import Line, dial
from slackline.nic._network import Network
from slackline.nic._options import NicOptions
from slackline.nic._paths import Attempt
from slackline.nic._plans import STAR, PlanBook
from slackline.nic._rendezvous import Meeting
from slackline.plan.collective import Collective

__all__ = ["Star", "reach"]

_log = logging.getLogger("slackline.nic")

_STORE_KEY = "slackline/aggregator/{epoch}"
"""The store's key of the aggregator's offer. The epoch keeps out offers to earlier groups."""
_CONNECT_S = 1.0
_REACH_S = 5.0
_NO_JOB = 0
_FALLBACK = "mesh"
"""The plan of the fallback group. It sums in rank order like an aggregator: the same bits."""


class Star:
    """The group of workers and aggregator, and the fallback group of the workers alone."""

    def __init__(
        self, group: _native.Group, fallback: _native.Group, link: int, most_bytes: int
    ) -> None:
        self._group, self._fallback, self._link = group, fallback, link
        self.most_bytes = most_bytes
        self.run = group.run

    def lost(self) -> str:
        """Return the reason why the aggregator is no longer used; empty while it is in use."""
        return self._group.broken()

    def close(self, timeout_ns: int) -> None:
        """Close the aggregator's group and the fallback group, each within `timeout_ns`."""
        self._group.close(timeout_ns)
        self._fallback.close(timeout_ns)

    def abort(self, reason: str) -> None:
        """Abort the aggregator's group and the fallback group."""
        self._group.abort(reason)
        self._fallback.abort(reason)

    def give_up(self, engine: _native.Engine, reason: str) -> None:
        """Close both groups and the link, because another rank cannot reach the aggregator."""
        self.close(0)
        engine.unreachable(self._link, reason)


def reach(
    engine: _native.Engine,
    network: Network,
    store: Store,
    meeting: Meeting,
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
        offer = _offer(network, store, meeting, rank, options.aggregator)
        if offer.refusal:
            why = offer.refusal
        else:
            star = _open(engine, network, offer, meeting, rank, links, book)
    except (SlacklineError, OSError, TimeoutError) as error:
        why = f"rank {rank} cannot reach it: {str(error) or 'no answer in time'}"
    failed = (ctypes.c_int64 * len(meeting.records))()
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


def _offer(network: Network, store: Store, meeting: Meeting, rank: int, where: str) -> Offer:
    """Return the aggregator's offer, which rank 0 requests and passes on through the store."""
    key = _STORE_KEY.format(epoch=meeting.epoch)
    if rank == 0:
        try:
            offer = network.keeper.run(_ask(network, meeting, where))
        except (SlacklineError, OSError, TimeoutError) as error:
            offer = Offer(refusal=f"rank 0 cannot reach it: {str(error) or 'no answer in time'}")
        store.set(key, offer.write().decode())
        return offer
    return Offer.read(store.get(key))


async def _ask(network: Network, meeting: Meeting, where: str) -> Offer:
    """Send the group's request to the aggregator and return the offer."""
    host, port = parse_address(where)
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    line = Line(await dial([_attempt(*each[4]) for each in found], _CONNECT_S))
    try:
        async with asyncio.timeout(_REACH_S):
            ask = Ask(nonce=fresh_nonce(), workers=len(meeting.records))
            await line.say(Said(payload=ask.write()), _NO_JOB)
            _, said = await line.hear()
            proof = Proof(network.key, ask.nonce, Ask.read(said.payload).nonce, calls=True)
            for record in meeting.records:
                await line.say(Said(payload=proof.seal(write_record(record))), _NO_JOB)
            _, said = await line.hear()
            return Offer.read(proof.open(said.payload))
    finally:
        line.close()


def _attempt(address: str, port: int, flow: int = 0, scope: int = 0) -> Attempt:
    """Return the connect to a socket address of either family."""
    return Attempt(address=address.partition("%")[0], port=port, scope=scope)


def _open(
    engine: _native.Engine,
    network: Network,
    offer: Offer,
    meeting: Meeting,
    rank: int,
    links: list[int],
    book: PlanBook,
) -> Star:
    """Connect to the aggregator, and open its group and the fallback group."""
    star = meeting_of(network.key, offer, meeting.records)
    aggregator = len(meeting.records)
    all_links, _ = network.connect(star, rank, (aggregator,), time.monotonic() + _REACH_S)
    group = engine.open_group(star.epoch, rank, all_links, True)
    fallback = engine.open_group(meeting.fallback_epoch, rank, links, True)
    group.fall_back(fallback, book.program(Collective.ALL_REDUCE, _FALLBACK))
    book.program(Collective.ALL_REDUCE, STAR)
    return Star(group, fallback, all_links[-1], offer.most_bytes)
