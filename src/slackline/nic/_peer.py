"""A peer engine and the rails (connections) to it: connecting, reconnecting, liveness.

    missing ──dial, handshake────> up ──"lost"──> missing      the caller's side, a task per rail
    missing ──accept, handshake──> up ──"lost"──> missing      the listener's side waits

The caller redials a lost rail every 200 ms while the link lives. Meanwhile the listening side makes
liveness connects to the caller's own listener ("knocks"). A connection that is refused where a
connect succeeded before means that the peer's process has ended, and the engine is told so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

from slackline.errors import InternalError, LinkError, PeerError, SlacklineError
from slackline.nic._carrier import Carrier, Site, TermsMaker, carry
from slackline.nic._door import unix_name
from slackline.nic._handshake import Session, call, fresh_nonce, listen
from slackline.nic._line import Line, converse, dial
from slackline.nic._messages import Answer, Hello, Terms
from slackline.nic._paths import RailPlan
from slackline.nic._rendezvous import Record
from slackline.nic._tls import secure

__all__ = ["Peer"]

_log = logging.getLogger("slackline.nic")

_AGAIN_S = 0.2
_FIRST_AGAIN_S = 0.02
_CONNECT_S = 0.3
_MOST_CONNECT_S = 1.0
_TALK_S = 3.0
_REASON_LETTERS = 500
_SETTLED_S = 0.5
"""The time after which a peer that was never reached and refuses connections counts as dead."""
_UNPROVEN_S = 3.0
"""The same limit for a peer that has connected to this rank: a firewall may refuse connections in
the other direction."""

Way = tuple[str, tuple[tuple[str, int], ...]]
"""A path to dial: the source address, and the targets as (address, port)."""


@dataclass(eq=False)
class _Rail:
    """The state of one rail: its path, its connection, and the attempts since it was lost."""

    plan: RailPlan
    way: Way
    """The path to the peer's listener."""
    missing: asyncio.Event = field(default_factory=asyncio.Event)
    carrier: Carrier | None = None
    """The handle of the rail's connection; None while the rail is missing."""
    added: int = 0
    """The number of connections of this rail that were handed to the engine so far."""
    ended: int = 0
    """The number of those that the engine has given up; the last one too if equal to `added`."""
    tries: int = 0
    """The number of failed attempts to connect since the rail was lost."""
    why: str = "it was not tried yet"
    """The reason why the last attempt failed, or why the rail was lost."""
    refused: bool = False
    """Whether the last attempt was refused because no process listens there."""
    proven_s: float | None = None
    """The duration of the last successful connect to the peer; None before the first one."""
    lost_at: float = field(default_factory=time.monotonic)


class Peer:
    """A peer engine: its rails, and the tasks that connect and reconnect them.

    `calls` says that this end dials and the peer listens. All methods must be called on the event
    loop's thread (Keeper).
    """

    def __init__(
        self,
        site: Site,
        link: int,
        rank: int,
        record: Record,
        key: bytes,
        code: int,
        plans: tuple[RailPlan, ...],
        ways: Mapping[int, Way],
        *,
        calls: bool,
        checksums: bool,
        on_rail: Callable[[RailPlan], None],
    ) -> None:
        self.link, self.rank, self.record, self.code, self.calls = link, rank, record, code, calls
        self._site, self._key, self._checksums, self._on_rail = site, key, checksums, on_rail
        self.rails = {plan.index: _Rail(plan, ways[plan.index]) for plan in plans}
        self._tasks: list[asyncio.Task[None]] = []
        self._gone = ""
        """The reason why this end has closed the link; empty while it is open."""
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the first rail is up; fails when no rail can be made."""
        self.complete = asyncio.Event()
        """Set when all rails are up."""

    @property
    def shared(self) -> bool:
        """Whether the link uses shared memory."""
        return self.rails[0].plan.kind == "shm"

    @property
    def has_rail(self) -> bool:
        """Whether at least one rail to the peer is up."""
        return any(rail.carrier for rail in self.rails.values())

    def start(self) -> None:
        """Start the tasks that dial the peer, or that check its liveness while waiting."""
        for rail in self.rails.values():
            rail.missing.set()
            if self.calls or not self.shared:
                self._tasks.append(self._site.keeper.spawn(self._keep(rail)))
                self._tasks[-1].add_done_callback(self._failed)

    def dismiss(self, why: str) -> None:
        """Close all rails to the peer and stop the tasks, once the link is down or not needed."""
        self._gone = why or "it is down"
        for task in self._tasks:
            task.cancel()
        for rail in self.rails.values():
            if rail.carrier is not None:
                rail.carrier.close()
                rail.carrier = None
        if not self.first.cancel() and not self.first.cancelled():
            self.first.exception()  # Reading it avoids a warning; the error is reported elsewhere.

    def lost(self, index: int, reason: str) -> None:
        """Handle the loss of a rail: close its connection and let its task reconnect."""
        rail = self.rails[index]
        rail.ended += 1
        if rail.carrier is None or rail.ended < rail.added:
            return  # A new connection has replaced the lost one already.
        rail.carrier.close()
        rail.carrier, rail.tries, rail.why, rail.refused = None, 0, reason, False
        rail.lost_at = time.monotonic()
        rail.missing.set()
        _log.info("link to rank %d: rail %d (%s) lost: %s", *self._named(rail), reason)

    def missing(self) -> str:
        """Return a text that lists the missing rails, each with the reason."""
        return "; ".join(
            f"{rail.plan.name}: {rail.why}" for rail in self.rails.values() if not rail.carrier
        )

    async def answer(self, line: Line, first: bytes, hello: Hello) -> None:
        """Complete the handshake on an accepted connection that began with `hello`.

        Takes over the socket of `line`. Raises SlacklineError or OSError if the other end is not
        the peer, or the rail is not expected.
        """
        knocks = hello.kind == "knock"
        rail = self.rails.get(hello.rail)
        if rail is None or knocks != self.calls or (not knocks and rail.plan.kind != hello.kind):
            raise LinkError(f"{hello.kind} of rail {hello.rail} was not expected")
        ours = Answer(
            engine=self._site.engine_name,
            nonce=fresh_nonce(),
            certificate=self._site.certificate.hex(),
        )
        with TermsMaker(self._site, hello.kind, line.sock) as terms:
            talk = listen(first, hello, ours, self._key, self._refuse if self._gone else terms.make)
            session = await converse(line, talk, self.code)
            if self._gone or knocks:
                line.close()
                return
            sock = line.release()
            if self._site.identity is not None and hello.kind == "tcp":
                sock = await secure(sock, self._site.identity, session.certificate, server=True)
            self._put_up(rail, self._carry(rail, sock, session, terms))

    def _refuse(self) -> tuple[Terms, tuple[int, ...]]:
        """Return parameters that tell the connecting engine why the link is closed."""
        return Terms(refusal=self._gone[:_REASON_LETTERS]), ()

    def _failed(self, task: asyncio.Task[None]) -> None:
        """Fail `first` after an unexpected error of a rail's task, so that waiters do not hang."""
        if not task.cancelled() and task.exception() is not None and not self.first.done():
            self.first.set_exception(InternalError("the keeper of links failed", peer=self.rank))

    async def _keep(self, rail: _Rail) -> None:
        """Connect one rail, or check the peer's liveness, whenever the rail is missing."""
        while True:
            await rail.missing.wait()
            try:
                await (self._call(rail) if self.calls else self._knock(rail))
            except (OSError, SlacklineError) as error:
                rail.tries += 1
                rail.why = str(error) or "no answer in time"
                rail.refused = isinstance(error, ConnectionRefusedError)
                self._judge()
                await asyncio.sleep(min(_AGAIN_S, _FIRST_AGAIN_S * 2.0 ** min(rail.tries, 8)))

    async def _prove(self, rail: _Rail) -> None:
        """Connect once to the peer's listener, to learn that the network allows such connects.

        Only then does a refused connect later mean that the peer's process has ended.
        """
        source, targets = rail.way
        begin = time.monotonic()
        with contextlib.suppress(OSError):
            (await dial(targets, source, _MOST_CONNECT_S)).close()
            rail.proven_s = time.monotonic() - begin

    async def _knock(self, rail: _Rail) -> None:
        """Check by a connect that the peer lives, while waiting for the peer to dial."""
        if not rail.added:
            await asyncio.sleep(_AGAIN_S)  # The peer may only be starting to dial.
        if rail.missing.is_set():
            async with self._talk(rail, "knock"):
                raise LinkError("it did not call")

    async def _call(self, rail: _Rail) -> None:
        """Connect one rail as the dialling side and hand it to the engine."""
        async with self._talk(rail, rail.plan.kind) as (line, session, terms):
            sock = line.release()
            if (identity := self._site.identity) is not None and rail.plan.kind == "tcp":
                sock = await secure(sock, identity, session.certificate, server=False)
            self._put_up(rail, self._carry(rail, sock, session, terms))

    @contextlib.asynccontextmanager
    async def _talk(
        self, rail: _Rail, kind: str
    ) -> AsyncIterator[tuple[Line, Session, TermsMaker]]:
        """Connect to the peer and complete the handshake, as a context manager.

        The handshake's time limit covers the body too. The socket is closed on exit unless the
        body released it.
        """
        site, plan = self._site, rail.plan
        hello = Hello(
            engine=site.engine_name,
            peer=self.record.engine,
            rail=plan.index,
            kind=kind,
            nonce=fresh_nonce(),
            certificate=site.certificate.hex(),
        )
        source, targets = rail.way
        where = unix_name(self.record.engine) if plan.kind == "shm" else targets
        begin = time.monotonic()
        line = Line(await dial(where, source, self._patience(rail)))
        took = time.monotonic() - begin
        try:
            async with asyncio.timeout(_TALK_S):
                with TermsMaker(site, kind, line.sock) as terms:
                    session = await converse(line, call(hello, self._key, terms.make), self.code)
                    rail.proven_s = took
                    if session.theirs.refusal:
                        self._give_up(f"it has given the link up: {session.theirs.refusal}")
                        raise LinkError("it has given the link up")
                    yield line, session, terms
        except TimeoutError:
            raise LinkError("the handshake was not answered in time") from None
        finally:
            line.close()

    def _patience(self, rail: _Rail) -> float:
        """Return the time limit of a connect; it is short after a quick connect succeeded."""
        if rail.proven_s is not None:
            return max(_CONNECT_S, 4 * rail.proven_s)
        return min(_MOST_CONNECT_S, _CONNECT_S * 2.0 ** min(rail.tries, 8))

    def _carry(
        self, rail: _Rail, sock: socket.socket, session: Session, terms: TermsMaker
    ) -> Carrier:
        site, checks = self._site, self._checksums
        return carry(site, self.link, rail.plan, sock, session, terms, checksums=checks)

    def _put_up(self, rail: _Rail, carrier: Carrier) -> None:
        """Register a rail's new connection, replace an old one, and report the rail as up."""
        if rail.carrier is not None:
            rail.carrier.close()
        rail.carrier = carrier
        rail.added += 1
        rail.missing.clear()
        if rail.added > 1:
            gone = time.monotonic() - rail.lost_at
            _log.info(
                "link to rank %d: rail %d (%s) is back after %.1f s", *self._named(rail), gone
            )
        else:
            _log.info("link to rank %d: rail %d (%s)", *self._named(rail))
        self._on_rail(rail.plan)
        if not self.calls and not self.shared and rail.proven_s is None:
            self._tasks.append(self._site.keeper.spawn(self._prove(rail)))
        if not self.first.done():
            self.first.set_result(None)
        if all(each.carrier for each in self.rails.values()):
            self.complete.set()

    def _judge(self) -> None:
        """Report the link as down if failed attempts show that the peer's process has ended."""
        rails = self.rails.values()
        if any(rail.carrier is not None or rail.tries == 0 for rail in rails):
            return
        known = [rail for rail in rails if rail.proven_s is not None]
        if known:
            gone = any(rail.refused for rail in known)
        else:
            patience = _UNPROVEN_S if any(rail.added for rail in rails) else _SETTLED_S
            since = max(rail.lost_at for rail in rails)
            gone = all(rail.refused for rail in rails)
            gone = gone and time.monotonic() - since > patience
        if not gone:
            return
        self._give_up(f"its process has ended ({self.missing()})")

    def _give_up(self, reason: str) -> None:
        """Fail the waiters for this peer and have the engine close the link."""
        if not self.first.done():
            self.first.set_exception(PeerError(f"rank {self.rank}: {reason}", peer=self.rank))
        self._site.engine.unreachable(self.link, reason)

    def _named(self, rail: _Rail) -> tuple[int, int, str]:
        return self.rank, rail.plan.index, rail.plan.name
