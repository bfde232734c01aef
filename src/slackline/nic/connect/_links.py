"""The links of an engine to its peers: connecting a new group's links, handling rail events.

A group has a link to every rank. A large group connects only a ring of links when it opens. Any
other link is connected when an operation needs it ("wanted"), on the event loop's thread; the
operation waits in the engine meanwhile. The rails of a link are derived from the addresses of both
ends when the link is connected, because most links of a large group are never used. A link outlives
the group that made it. In the group that makes the link, the lower rank of the pair dials and the
higher rank listens, and the two keep these roles as long as the link lives.

A peer that is in no group any more and was never connected is a stranger. The oldest strangers are
forgotten, so that the tables do not grow with the changes of a job's members. A stranger may come
back, and the other end may still have the link: therefore its role is remembered.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import slackline._native as _native
from slackline.errors import LinkError, TimeoutError
from slackline.nic._options import NicOptions
from slackline.nic.connect._addresses import Interface, loopback_fault
from slackline.nic.connect._handshake_channel import HandshakeChannel
from slackline.nic.connect._listener import Listener
from slackline.nic.connect._messages import Hello
from slackline.nic.connect._paths import RailPlan, plan_rails, why_no_path
from slackline.nic.connect._peer import Peer
from slackline.nic.connect._rail_handle import LocalContext
from slackline.nic.connect._rendezvous import EndpointDescriptor, Rendezvous
from slackline.nic.connect._sockets import NoPortError

if TYPE_CHECKING:
    from slackline.nic.connect._injector import Injector, RailDirection

__all__ = ["Links"]

_log = logging.getLogger("slackline.nic")

_GRACE_S = 2.0
"""The time that a new group waits for the other rails of a link after the first rail is up."""
_NOTICE_S = 10.0
"""The time after which a new group that still waits for a rank says so in the log."""
_MOST_DISMISSED = 256
"""The number of peers that are answered with the reason why their link was closed. A peer whose
process lives dials again within a second, so that an older one has ended."""
_MOST_STRANGERS = 64
_MOST_ROLES = 4096
"""The number of forgotten peers whose roles are remembered."""


class Links:
    """The links of an engine, by the identity of the peer's engine."""

    def __init__(
        self,
        context: LocalContext,
        host: str,
        options: NicOptions,
        listener: Listener,
        injector: Injector | None,
    ) -> None:
        self._context, self._host, self._options, self._listener = context, host, options, listener
        self._injector = injector
        self._peers: dict[str, Peer] = {}
        self._by_link: dict[int, Peer] = {}
        self._by_rendezvous: dict[tuple[int, str], Peer] = {}
        self._dismissed = deque[Peer]()
        """The peers whose links were closed last, the oldest first."""
        self._groups = Counter[Peer]()
        """The number of open groups of each peer."""
        self._strangers = dict[Peer, None]()
        """The peers in no group that were never connected, the oldest first."""
        self._roles = dict[str, bool]()
        """Whether this end dials, by the engines of forgotten peers, the oldest first."""

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
        """Add links to all ranks, and connect the links to the ranks in `needed`.

        Returns the links, and whether all of them are planned to be shared memory, which all ranks
        of the group answer equally. The links are the engine's numbers, in the order of ranks, with
        -1 for `rank` itself. Blocks until `deadline` of time.monotonic() at most, and must not be
        called on the event loop's thread. Raises PeerError if a needed rank ends meanwhile,
        TimeoutError if one does not connect in time, and LinkError if no rail can lead to a needed
        rank. An operation that needs any other rank to which no rail can lead ends with a LinkError
        at its deadline. `glance` is called every 100 ms meanwhile, and may raise to end the call.
        `job` are the members' ranks in the job, which say equally in all groups which end of a new
        link dials; without it, the ranks in the group do.
        """
        work = self._connect(
            rendezvous, rank, needed, deadline, job or range(len(rendezvous.descriptors))
        )
        return self._context.manager.run(work, glance)

    def prepare(self, links: Iterable[int]) -> None:
        """Begin to connect those of `links` that this end dials; -1 in `links` stands for no link.

        Must be called on the event loop's thread.
        """
        for link in links:
            peer = self._by_link.get(link)
            if peer is not None and peer.calls:
                peer.start()

    def forget(self, links: Iterable[int], code: int) -> None:
        """Drop the links without a rail that the rendezvous with this code alone has made.

        Its group has not opened. The other end may lack the link, and make it anew in a later group
        in which the other end of the two dials. Must be called on the event loop's thread.
        """
        made = [self._by_link.get(link) for link in links]
        self._leave(
            [peer for peer in made if peer is not None and peer.codes == (code,)],
            "the group did not open",
        )

    def left(self, links: Iterable[int]) -> None:
        """Note that a group which `connect` has returned these links for is closed.

        Must be called on the event loop's thread.
        """
        self._exit([self._by_link[link] for link in links if link in self._by_link])

    def start(self) -> None:
        """Begin to accept connections. Must be called on the event loop's thread."""
        self._listener.open(self._context.manager, self._greet, self._starve)

    def addresses_changed(self) -> None:
        """Tell all peers of changed addresses. Must be called on the event loop's thread."""
        for peer in list(self._peers.values()):
            peer.addresses_changed()

    def happened(self, event: _native.RailEvent) -> None:
        """Handle an event of the engine's rails. Must be called on the event loop's thread."""
        if event.what == "abandoned":
            _log.warning(
                "the aggregator is lost: %s; the group repeats its unfinished operations, and runs "
                "all later ones, without the aggregator",
                event.reason,
            )
        peer = self._by_link.get(event.link)
        if peer is None:
            return
        if event.what in ("lost", "closed"):
            peer.lost(event.rail, event.reason)
        elif event.what == "wanted":
            peer.start(asks=True)
        elif event.what == "down":
            _log.info("link to rank %d: down: %s", peer.rank, event.reason)
            self._drop(peer, event.reason)

    def release(self) -> None:
        """Let go of the peers, once the event loop has stopped.

        Peers and links refer to each other. Programs that do without the cyclic garbage collector
        get the memory of a closed engine back nevertheless.
        """
        for peer in self._by_rendezvous.values():
            peer.release()
        tables = (self._peers, self._by_link, self._by_rendezvous, self._dismissed)
        for table in (*tables, self._groups, self._strangers):
            table.clear()

    async def _connect(
        self,
        rendezvous: Rendezvous,
        rank: int,
        needed: Collection[int],
        deadline: float,
        job: Sequence[int],
    ) -> tuple[list[int], bool]:
        mine, awaited = rendezvous.descriptors[rank], dict[int, Peer]()
        added, entered = list[Peer](), list[Peer]()
        links = [-1] * len(rendezvous.descriptors)
        try:
            for other, descriptor in enumerate(rendezvous.descriptors):
                if other == rank:
                    continue
                peer = self._peers.get(descriptor.engine)
                if peer is None or not self._context.engine.link_alive(peer.link):
                    if peer is not None:
                        self._drop(peer, "a new one was made")
                    calls = self._roles.pop(descriptor.engine, job[other] > job[rank])
                    peer = self._add(rendezvous, mine, other, descriptor, calls=calls)
                    added.append(peer)
                elif peer.meet_also(rendezvous.code, _key(rendezvous, mine, descriptor)):
                    self._by_rendezvous[rendezvous.code, descriptor.engine] = peer
                self._groups[peer] += 1
                self._strangers.pop(peer, None)
                entered.append(peer)
                if other in needed and not peer.first.done():
                    peer.rails.derive()
                    peer.start()
                    awaited[other] = peer
                links[other] = peer.link
            self._listener.announce()
            await self._wait(awaited, rank, deadline)
            if self._injector is not None:
                self._injector.begin(rank, rendezvous.descriptors)
        except BaseException as error:
            self._leave(added, f"the rendezvous failed: {error}")
            self._exit(entered)
            raise
        others = [each for each in rendezvous.descriptors if each is not mine]
        return links, all(self._shares_memory(mine, each) for each in others)

    def _add(
        self,
        rendezvous: Rendezvous,
        mine: EndpointDescriptor,
        other: int,
        descriptor: EndpointDescriptor,
        *,
        calls: bool,
    ) -> Peer:
        """Create the link to a peer, whose rails are not connected yet."""
        shared = self._shares_memory(mine, descriptor)
        ends = (mine, descriptor) if calls else (descriptor, mine)

        def plan(in_memory: bool) -> tuple[RailPlan, ...]:
            if plans := self._plans(*ends, in_memory=in_memory):
                return plans
            raise LinkError(
                f"no rail leads to rank {other}: {self._why(mine, descriptor)}", peer=other
            )

        def replan(
            caller: Sequence[Interface], listener: Sequence[Interface]
        ) -> tuple[RailPlan, ...]:
            pair = zip(ends, (caller, listener), strict=True)
            caller_end, listener_end = (replace(end, interfaces=tuple(now)) for end, now in pair)
            return self._plans(caller_end, listener_end, in_memory=False)

        lasting = not shared and not (mine.aggregates or descriptor.aggregates)
        what = "aggregator" if descriptor.aggregates else "engine"
        link = self._context.engine.add_link(
            f"{what} {descriptor.engine[:8]}", reconnect=lasting, shared=shared
        )
        peer = Peer(
            self._context,
            link,
            other,
            descriptor,
            _key(rendezvous, mine, descriptor),
            rendezvous.code,
            plan,
            replan,
            told=mine.interfaces,
            calls=calls,
            shared=shared,
            checksums=self._checksums(descriptor),
            on_rail=self._rail_is_up,
        )
        self._peers[descriptor.engine] = self._by_link[link] = peer
        self._by_rendezvous[rendezvous.code, descriptor.engine] = peer
        return peer

    def _rail_is_up(self, peer: Peer, plan: RailPlan) -> None:
        """Apply the injected faults, if any, to the sending direction of a new rail."""
        if self._injector is not None:
            self._injector.rail_is_up(_direction(peer, plan))

    def _plans(
        self, caller: EndpointDescriptor, listener: EndpointDescriptor, *, in_memory: bool
    ) -> tuple[RailPlan, ...]:
        """Derive the rails between two engines from their descriptors, equally at both ends."""
        if in_memory:
            return (RailPlan(index=0, kind="shm"),)
        wires: Sequence[str] = [kind for kind in self._options.rails if kind != "shm"]
        aggregates = caller.aggregates or listener.aggregates
        return plan_rails(
            caller.interfaces,
            listener.interfaces,
            one_host=caller.network == listener.network,
            chosen=caller.chosen or listener.chosen,
            kinds=wires or (["tcp"] if aggregates else []),
            connections=self._options.connections,
        )

    def _shares_memory(self, one: EndpointDescriptor, other: EndpointDescriptor) -> bool:
        """Return whether two engines are to be connected by shared memory.

        The answer depends on facts alone that never change, so that two ranks which open several
        groups at once agree on it in each group.
        """
        aggregates = one.aggregates or other.aggregates
        return one.host == other.host and "shm" in self._options.rails and not aggregates

    def _why(self, mine: EndpointDescriptor, theirs: EndpointDescriptor) -> str:
        """Return the reason why no rail can be planned to an engine."""
        if set(self._options.rails) == {"shm"}:
            return "rails are shm and it does not share memory with this one"
        if mine.network == theirs.network and (down := loopback_fault()):
            return down
        return why_no_path(mine.interfaces, theirs.interfaces)

    def _checksums(self, descriptor: EndpointDescriptor) -> bool:
        """Return whether payloads to this peer carry a checksum; TLS rails need none."""
        if self._options.checksums == "wire":
            return descriptor.host != self._host and self._options.tls == "off"
        return self._options.checksums == "all"

    async def _wait(self, peers: Mapping[int, Peer], rank: int, deadline: float) -> None:
        """Wait until each peer has one rail, and for a short time for the other rails.

        `peers` are given by their ranks in the new group.
        """
        waits = [asyncio.ensure_future(self._settle(peer)) for peer in peers.values()]
        notice = asyncio.get_running_loop().call_later(_NOTICE_S, _warn_of_missing, peers)
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                await asyncio.gather(*waits)
        except builtins.TimeoutError:
            if late := _missing(peers):
                names = ", ".join(late.values())
                raise TimeoutError(
                    f"the rendezvous Timed out waiting for {names}", rank=rank, peer=min(late)
                ) from None
        finally:
            notice.cancel()
            for wait in waits:
                wait.cancel()

    async def _settle(self, peer: Peer) -> None:
        """Wait until a peer has one rail, and for a short time until all its rails are up."""
        await asyncio.shield(peer.first)
        try:
            async with asyncio.timeout(_GRACE_S):
                await peer.complete.wait()
        except builtins.TimeoutError:
            _log.warning(
                "link to rank %d: goes on without some rails: %s", peer.rank, peer.missing()
            )

    async def _greet(
        self, channel: HandshakeChannel, code: int, first: bytes, hello: Hello
    ) -> bool:
        """Complete the handshake if the connection's peer is known; return whether it is known."""
        peer = self._by_rendezvous.get((code, hello.engine))
        if peer is None:
            return False
        if hello.peer != self._context.engine_name:
            raise LinkError("it called another engine")
        try:
            await peer.answer(channel, code, first, hello)
        except (OSError, MemoryError, NoPortError) as error:
            peer.starve(error)
            raise
        return True

    def _starve(self, error: OSError) -> None:
        """Fail all groups that wait for a rail which needs a descriptor that cannot be had."""
        for peer in self._peers.values():
            peer.starve(error)

    def _leave(self, peers: Iterable[Peer], why: str) -> None:
        """Drop the links of a group that does not open, if they have no rail.

        Where there is a rail, the other end has the link too, and may keep it.
        """
        for peer in peers:
            if not peer.has_rail:
                self._drop(peer, why)
                self._context.engine.unreachable(peer.link, why)

    def _exit(self, peers: Iterable[Peer]) -> None:
        """Note that each of these peers is in one group less; forget the oldest strangers."""
        for peer in peers:
            if peer not in self._groups:
                continue  # The link has been closed meanwhile.
            self._groups[peer] -= 1
            if self._groups[peer] == 0:
                del self._groups[peer]
                if not peer.first.done():
                    self._strangers[peer] = None
        while len(self._strangers) > _MOST_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            if not oldest.first.done():  # The peer may have connected since.
                self._forget(oldest)

    def _forget(self, peer: Peer) -> None:
        """Remove a stranger; later calls from its process are those of an unknown engine."""
        engine = peer.descriptor.engine
        self._roles[engine] = peer.calls
        if len(self._roles) > _MOST_ROLES:
            del self._roles[next(iter(self._roles))]
        peer.dismiss("no group needs it")
        self._context.engine.forget_link(peer.link)
        self._remove(peer)
        self._unmeet(peer)

    def _unmeet(self, peer: Peer) -> None:
        """Remove a peer from the rendezvous through which its calls are recognized."""
        for code in peer.codes:
            if self._by_rendezvous.get((code, peer.descriptor.engine)) is peer:
                del self._by_rendezvous[code, peer.descriptor.engine]
        peer.release()

    def _drop(self, peer: Peer, why: str) -> None:
        """Close the link to a peer.

        The peer stays in `_by_rendezvous`, so that a new connection from the peer is answered with
        the reason, until many other links have been closed.
        """
        peer.dismiss(why)
        self._dismissed.append(peer)
        if len(self._dismissed) > _MOST_DISMISSED:
            self._unmeet(self._dismissed.popleft())
        self._remove(peer)

    def _remove(self, peer: Peer) -> None:
        """Remove a peer from the tables of links that may be used."""
        self._groups.pop(peer, None)
        self._strangers.pop(peer, None)
        if self._injector is not None:
            self._injector.forget(peer.link)
        self._by_link.pop(peer.link, None)
        if self._peers.get(peer.descriptor.engine) is peer:
            del self._peers[peer.descriptor.engine]


def _missing(peers: Mapping[int, Peer]) -> dict[int, str]:
    """Return the peers without a rail by their ranks, each as a text with the reason."""
    return {
        other: f"rank {other} ({peer.missing()})"
        for other, peer in peers.items()
        if not peer.has_rail
    }


def _warn_of_missing(peers: Mapping[int, Peer]) -> None:
    """Log the ranks that a new group has waited for, so that nobody waits for the deadline."""
    if late := _missing(peers):
        _log.warning("after %g s the group still waits for %s", _NOTICE_S, ", ".join(late.values()))


def _key(rendezvous: Rendezvous, one: EndpointDescriptor, other: EndpointDescriptor) -> bytes:
    """Return the key by which two engines authenticate themselves after a rendezvous."""
    return rendezvous.key((one.engine, other.engine))


def _direction(peer: Peer, plan: RailPlan) -> RailDirection:
    """Return the sending direction of a rail in the form that fault injection uses."""
    # The injector's module, imported with it.
    from slackline.nic.connect._injector import WHOLE_LINK, RailDirection

    here, there = (0, 0) if plan.path is None else (plan.path.caller_nic, plan.path.listener_nic)
    if not peer.calls:
        here, there = there, here
    return RailDirection(
        link=peer.link,
        rail=WHOLE_LINK if peer.shared else plan.index,
        peer=peer.descriptor.engine,
        nic_here=here,
        nic_there=there,
    )
