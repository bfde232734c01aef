"""The links of an engine to its peers: making those of a new group, and handling their events.

A group has a link to every rank. When a large group opens, it connects only a ring of them. Any
other link is connected when an operation needs it ("wanted"), on the event loop's thread; the
operation waits in the engine meanwhile. A link outlives the group that made it. In the group that
makes the link, the lower rank of the pair dials and the higher one listens, and the roles stay so
as long as the link lives.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import slackline._native as _native
from slackline.errors import LinkError, TimeoutError
from slackline.nic._addresses import Interface
from slackline.nic._carrier import Site
from slackline.nic._door import Door
from slackline.nic._injector import WHOLE_LINK, Injector, Way
from slackline.nic._line import Line
from slackline.nic._messages import Hello
from slackline.nic._options import NicOptions
from slackline.nic._paths import RailPlan, plan_rails, why_no_path
from slackline.nic._peer import Peer
from slackline.nic._rendezvous import Meeting, Record

__all__ = ["Links"]

_log = logging.getLogger("slackline.nic")

_GRACE_S = 2.0
"""The time that a new group waits for the other rails of a link after the first one is up."""


class Links:
    """The links of an engine, by the identity of the peer's engine."""

    def __init__(
        self, site: Site, host: str, options: NicOptions, door: Door, injector: Injector
    ) -> None:
        self._site, self._host, self._options, self._door = site, host, options, door
        self._injector = injector
        self._peers: dict[str, Peer] = {}
        self._by_link: dict[int, Peer] = {}
        self._met: dict[tuple[int, str], Peer] = {}

    def connect(
        self, meeting: Meeting, rank: int, needed: Collection[int], deadline: float
    ) -> tuple[list[int], bool]:
        """Add links to all ranks, and connect those to the ranks `needed`.

        Returns the links, and whether all of them are shared memory. The links are the engine's
        numbers, in the order of ranks, with -1 for `rank` itself. Blocks until `deadline` of
        time.monotonic() at most, and must not be called on the event loop's thread. Raises
        PeerError if a needed rank ends meanwhile, TimeoutError if one does not connect in time, and
        LinkError if no rail can lead to a rank.
        """
        return self._site.keeper.run(self._connect(meeting, rank, needed, deadline))

    def prepare(self, links: Iterable[int]) -> None:
        """Begin to connect these links of the engine, where this end dials; -1 stands for none.

        Must be called on the event loop's thread.
        """
        for link in links:
            peer = self._by_link.get(link)
            if peer is not None and peer.calls:
                peer.start()

    def start(self) -> None:
        """Begin to accept connections. Must be called on the event loop's thread."""
        self._door.open(self._site.keeper, self._greet)

    def addresses_changed(self) -> None:
        """Tell all peers of changed addresses. Must be called on the event loop's thread."""
        for peer in list(self._peers.values()):
            peer.addresses_changed()

    def happened(self, event: _native.RailEvent) -> None:
        """Handle an event of the engine's rails. Must be called on the event loop's thread."""
        if event.what == "abandoned":
            _log.warning(
                "the aggregator is lost: %s; what it had not done is repeated without it, and all "
                "that follows is done without it",
                event.reason,
            )
        peer = self._by_link.get(event.link)
        if peer is None:
            return
        if event.what == "lost":
            peer.lost(event.rail, event.reason)
        elif event.what == "wanted":
            peer.start(asks=True)
        elif event.what == "down":
            _log.info("link to rank %d: down: %s", peer.rank, event.reason)
            self._drop(peer, event.reason)

    async def _connect(
        self, meeting: Meeting, rank: int, needed: Collection[int], deadline: float
    ) -> tuple[list[int], bool]:
        mine, added, awaited = meeting.records[rank], list[Peer](), dict[int, Peer]()
        links, shared = [-1] * len(meeting.records), True
        try:
            for other, record in enumerate(meeting.records):
                if other == rank:
                    continue
                peer = self._peers.get(record.engine)
                if peer is None or not self._site.engine.link_alive(peer.link):
                    if peer is not None:
                        self._drop(peer, "a new one was made")
                    peer = self._add(meeting, mine, other, record, calls=other > rank)
                    added.append(peer)
                if other in needed and not peer.first.done():
                    peer.start()
                    awaited[other] = peer
                links[other] = peer.link
                shared = shared and peer.shared
            self._door.announce()
            await self._wait(awaited, rank, deadline)
            self._injector.begin(rank, meeting.records)
        except BaseException as error:
            for peer in added:
                self._drop(peer, f"the rendezvous failed: {error}")
                self._site.engine.unreachable(peer.link, "the rendezvous failed")
            raise
        return links, shared

    def _add(
        self, meeting: Meeting, mine: Record, other: int, record: Record, *, calls: bool
    ) -> Peer:
        """Create the link to a peer, whose rails are not connected yet."""
        plans = self._plans(mine, record) if calls else self._plans(record, mine)
        if not plans:
            raise LinkError(f"no rail leads to rank {other}: {self._why(mine, record)}", peer=other)
        shared = plans[0].kind == "shm"
        ends = (mine, record) if calls else (record, mine)

        def replan(
            caller: Sequence[Interface], listener: Sequence[Interface]
        ) -> tuple[RailPlan, ...]:
            pair = zip(ends, (caller, listener), strict=True)
            return self._plans(*(replace(end, interfaces=tuple(now)) for end, now in pair))

        lasting = not shared and not (mine.aggregates or record.aggregates)
        what = "aggregator" if record.aggregates else "engine"
        link = self._site.engine.add_link(
            f"{what} {record.engine[:8]}", redial=lasting, shared=shared
        )
        peer = Peer(
            self._site,
            link,
            other,
            record,
            meeting.key((mine.engine, record.engine)),
            meeting.code,
            plans,
            replan,
            told=mine.interfaces,
            calls=calls,
            checksums=self._checksums(record),
            on_rail=lambda plan: self._injector.rail_is_up(_way(peer, plan)),
        )
        self._peers[record.engine] = self._by_link[link] = peer
        self._met[meeting.code, record.engine] = peer
        return peer

    def _plans(self, caller: Record, listener: Record) -> tuple[RailPlan, ...]:
        """Derive the rails between two engines from their descriptors; both ends get the same."""
        one_host = caller.host == listener.host
        kinds = self._options.rails
        aggregates = caller.aggregates or listener.aggregates
        if one_host and "shm" in kinds and not aggregates:
            return (RailPlan(index=0, kind="shm"),)
        wires: Sequence[str] = [kind for kind in kinds if kind != "shm"]
        return plan_rails(
            caller.interfaces,
            listener.interfaces,
            one_host=caller.network == listener.network,
            chosen=caller.chosen or listener.chosen,
            kinds=wires or (["tcp"] if aggregates else []),
            connections=self._options.connections,
        )

    def _why(self, mine: Record, theirs: Record) -> str:
        """Return the reason why no rail can be planned to an engine."""
        if set(self._options.rails) == {"shm"}:
            return "rails are shm and it does not share memory with this one"
        return why_no_path(mine.interfaces, theirs.interfaces)

    def _checksums(self, record: Record) -> bool:
        """Return whether payloads to this peer carry a checksum; TLS rails need none."""
        if self._options.checksums == "wire":
            return record.host != self._host and self._options.tls == "off"
        return self._options.checksums == "all"

    async def _wait(self, peers: Mapping[int, Peer], rank: int, deadline: float) -> None:
        """Wait until each peer has one rail, and for a short time for the other rails.

        `peers` are given by their ranks in the new group.
        """
        waits = [asyncio.ensure_future(self._settle(peer)) for peer in peers.values()]
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                await asyncio.gather(*waits)
        except builtins.TimeoutError:
            late = {other: peer for other, peer in peers.items() if not peer.has_rail}
            if late:
                names = ", ".join(
                    f"rank {other} ({peer.missing()})" for other, peer in late.items()
                )
                raise TimeoutError(
                    f"the rendezvous Timed out waiting for {names}", rank=rank, peer=min(late)
                ) from None
        finally:
            for wait in waits:
                wait.cancel()

    async def _settle(self, peer: Peer) -> None:
        """Wait until a peer has one rail, and for a short time until it has all."""
        await asyncio.shield(peer.first)
        try:
            async with asyncio.timeout(_GRACE_S):
                await peer.complete.wait()
        except builtins.TimeoutError:
            _log.warning(
                "link to rank %d: goes on without some rails: %s", peer.rank, peer.missing()
            )

    async def _greet(self, line: Line, code: int, first: bytes, hello: Hello) -> bool:
        """Complete the handshake of a connection from a known peer; return False for others."""
        peer = self._met.get((code, hello.engine))
        if peer is None:
            return False
        if hello.peer != self._site.engine_name:
            raise LinkError("it called another engine")
        await peer.answer(line, first, hello)
        return True

    def _drop(self, peer: Peer, why: str) -> None:
        """Close the link to a peer.

        The peer stays in `_met`, so that a new connection from it is answered with the reason.
        """
        peer.dismiss(why)
        self._injector.forget(peer.link)
        self._by_link.pop(peer.link, None)
        if self._peers.get(peer.record.engine) is peer:
            del self._peers[peer.record.engine]


def _way(peer: Peer, plan: RailPlan) -> Way:
    """Return the sending direction of a rail in the form that fault injection uses."""
    here, there = (0, 0) if plan.path is None else (plan.path.caller_nic, plan.path.listener_nic)
    if not peer.calls:
        here, there = there, here
    return Way(
        link=peer.link,
        rail=WHOLE_LINK if peer.shared else plan.index,
        peer=peer.record.engine,
        nic_here=here,
        nic_there=there,
    )
