"""The links of an engine: which exist, how those of a new group are made, and what becomes of them.

Links outlive the groups that made them. Of a pair, the lower rank of the group that made the link
calls and the higher one listens, for as long as the link lives.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import time
from collections.abc import Sequence

import slackline._native as _native
from slackline.errors import LinkError, TimeoutError
from slackline.nic._carrier import Site
from slackline.nic._door import Door
from slackline.nic._injector import WHOLE_LINK, Injector, Way
from slackline.nic._line import Line
from slackline.nic._messages import Hello
from slackline.nic._options import NicOptions
from slackline.nic._paths import RailPlan, plan_rails, way_back
from slackline.nic._peer import Peer
from slackline.nic._rendezvous import Meeting, Record

__all__ = ["Links"]

_log = logging.getLogger("slackline.nic")

_GRACE_S = 2.0
"""How long a group waits for the other rails of a link when it has one."""


class Links:
    """Links by the identity of the peer's engine."""

    def __init__(
        self, site: Site, host: str, options: NicOptions, door: Door, injector: Injector
    ) -> None:
        self._site, self._host, self._options, self._door = site, host, options, door
        self._injector = injector
        self._peers: dict[str, Peer] = {}
        self._by_link: dict[int, Peer] = {}
        self._met: dict[tuple[int, str], Peer] = {}

    def connect(self, meeting: Meeting, rank: int, deadline: float) -> tuple[list[int], bool]:
        """The engine's number of the link to each rank, -1 at `rank` itself; whether all of them
        are shared memory. Makes those that are missing. Blocks; not on the keeper's thread.

        `deadline` is of time.monotonic(). Raises PeerError when a rank goes away, TimeoutError when
        one does not come, LinkError when no rail leads to it.
        """
        return self._site.keeper.run(self._connect(meeting, rank, deadline))

    def start(self) -> None:
        """Let callers in. On the keeper's thread."""
        self._door.open(self._site.keeper, self._greet)

    def happened(self, event: _native.RailEvent) -> None:
        """What the engine tells about its rails. On the keeper's thread."""
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
        elif event.what == "down":
            _log.info("link to rank %d: down: %s", peer.rank, event.reason)
            self._drop(peer, event.reason)

    async def _connect(
        self, meeting: Meeting, rank: int, deadline: float
    ) -> tuple[list[int], bool]:
        mine, made = meeting.records[rank], list[Peer]()
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
                    made.append(peer)
                links[other] = peer.link
                shared = shared and peer.shared
            self._door.announce()
            await self._wait(made, rank, deadline)
            self._injector.begin(rank, meeting.records)
        except BaseException as error:
            for peer in made:
                self._drop(peer, f"the rendezvous failed: {error}")
                self._site.engine.unreachable(peer.link, "the rendezvous failed")
            raise
        return links, shared

    def _add(
        self, meeting: Meeting, mine: Record, other: int, record: Record, *, calls: bool
    ) -> Peer:
        plans = self._plans(mine, record) if calls else self._plans(record, mine)
        if not plans:
            raise LinkError(
                f"no rail leads to rank {other}: rails are {', '.join(self._options.rails)} and it "
                "does not share memory with this one",
                peer=other,
            )
        shared = plans[0].kind == "shm"
        one_host = record.host == self._host
        ways = {
            plan.index: (plan.source, plan.targets)
            if calls
            else way_back(plan, record.interfaces, mine.interfaces, one_host=one_host)
            for plan in plans
        }
        lasting = not shared and not (mine.aggregates or record.aggregates)
        what = "aggregator" if record.aggregates else "engine"
        link = self._site.engine.add_link(f"{what} {record.engine[:8]}", redial=lasting)
        peer = Peer(
            self._site,
            link,
            other,
            record,
            meeting.key((mine.engine, record.engine)),
            meeting.code,
            plans,
            ways,
            calls=calls,
            checksums=self._checksums(record),
            on_rail=lambda plan: self._injector.rail_is_up(_way(peer, plan)),
        )
        self._peers[record.engine] = self._by_link[link] = peer
        self._met[meeting.code, record.engine] = peer
        peer.start()
        return peer

    def _plans(self, caller: Record, listener: Record) -> tuple[RailPlan, ...]:
        """What two ranks make of their records; the same at both."""
        one_host = caller.host == listener.host
        kinds = self._options.rails
        aggregates = caller.aggregates or listener.aggregates
        if one_host and "shm" in kinds and not aggregates:
            return (
                RailPlan(index=0, kind="shm", source="", targets=(), caller_nic=0, listener_nic=0),
            )
        wires: Sequence[str] = [kind for kind in kinds if kind != "shm"]
        return plan_rails(
            caller.interfaces,
            listener.interfaces,
            one_host=one_host,
            chosen=caller.chosen or listener.chosen,
            kinds=wires or (["tcp"] if aggregates else []),
            connections=self._options.connections,
        )

    def _checksums(self, record: Record) -> bool:
        """Whether payloads to this peer carry one; TLS has better ones of its own."""
        if self._options.checksums == "wire":
            return record.host != self._host and self._options.tls == "off"
        return self._options.checksums == "all"

    async def _wait(self, peers: list[Peer], rank: int, deadline: float) -> None:
        """Until each has a rail, and a little longer for the others."""
        waits = [asyncio.ensure_future(self._settle(peer)) for peer in peers]
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                await asyncio.gather(*waits)
        except builtins.TimeoutError:
            late = [peer for peer in peers if not peer.has_rail]
            if late:
                names = ", ".join(f"rank {peer.rank} ({peer.missing()})" for peer in late)
                raise TimeoutError(
                    f"the rendezvous Timed out waiting for {names}", rank=rank, peer=late[0].rank
                ) from None
        finally:
            for wait in waits:
                wait.cancel()

    async def _settle(self, peer: Peer) -> None:
        await asyncio.shield(peer.first)
        try:
            async with asyncio.timeout(_GRACE_S):
                await peer.complete.wait()
        except builtins.TimeoutError:
            _log.warning(
                "link to rank %d: goes on without some rails: %s", peer.rank, peer.missing()
            )

    async def _greet(self, line: Line, code: int, first: bytes, hello: Hello) -> bool:
        peer = self._met.get((code, hello.engine))
        if peer is None:
            return False
        if hello.peer != self._site.engine_name:
            raise LinkError("it called another engine")
        await peer.answer(line, first, hello)
        return True

    def _drop(self, peer: Peer, why: str) -> None:
        """It stays known: its engine is told why when it calls again."""
        peer.dismiss(why)
        self._injector.forget(peer.link)
        self._by_link.pop(peer.link, None)
        if self._peers.get(peer.record.engine) is peer:
            del self._peers[peer.record.engine]


def _way(peer: Peer, plan: RailPlan) -> Way:
    here, there = plan.caller_nic, plan.listener_nic
    if not peer.calls:
        here, there = there, here
    return Way(
        link=peer.link,
        rail=WHOLE_LINK if peer.shared else plan.index,
        peer=peer.record.engine,
        nic_here=here,
        nic_there=there,
    )
