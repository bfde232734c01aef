"""One peer: the rails that lead to it, made by calling it or by being called, and made again.

    missing ──dial, handshake──> up ──"lost"──> missing      the caller's side, one task for a rail
    missing ──called, handshake> up ──"lost"──> missing      the listener's side only waits

A rail that is lost is dialled every 200 ms for as long as the link lives; the listening side knocks
at the caller's door meanwhile. When nobody listens any more where somebody did, the peer's process
has ended, and the engine is told so.
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
"""How long a peer whom nobody has reached yet may seem gone."""
_UNPROVEN_S = 3.0
"""How long one may whose door was never found open, but who has called: a firewall may refuse."""

Way = tuple[str, tuple[tuple[str, int], ...]]
"""Where to dial from, and to."""


@dataclass(eq=False)
class _Rail:
    """What is known of one rail."""

    plan: RailPlan
    way: Way
    """To the peer's door."""
    missing: asyncio.Event = field(default_factory=asyncio.Event)
    carrier: Carrier | None = None
    """What keeps it up; None while it is missing."""
    added: int = 0
    """How many rails of this index the engine was given."""
    ended: int = 0
    """How many of them it has given up: the last one as well, if that is the same number."""
    tries: int = 0
    """Calls in vain since it was lost."""
    why: str = "it was not tried yet"
    """Why the last one was."""
    refused: bool = False
    """Whether nobody listened there at the last one."""
    proven_s: float | None = None
    """How long connecting took when it led to the peer; None: it never did."""
    lost_at: float = field(default_factory=time.monotonic)


class Peer:
    """All methods are for the keeper's thread."""

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
        """Why the link is down here."""
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done with the first rail; failed when none will come."""
        self.complete = asyncio.Event()
        """Set with the last one."""

    @property
    def shared(self) -> bool:
        """Whether the link is shared memory."""
        return self.rails[0].plan.kind == "shm"

    @property
    def has_rail(self) -> bool:
        return any(rail.carrier for rail in self.rails.values())

    def start(self) -> None:
        """Begin to dial, or to wait for calls."""
        for rail in self.rails.values():
            rail.missing.set()
            if self.calls or not self.shared:
                self._tasks.append(self._site.keeper.spawn(self._keep(rail)))
                self._tasks[-1].add_done_callback(self._failed)

    def dismiss(self, why: str) -> None:
        """The link is down, or nobody wants it any more."""
        self._gone = why or "it is down"
        for task in self._tasks:
            task.cancel()
        for rail in self.rails.values():
            if rail.carrier is not None:
                rail.carrier.close()
                rail.carrier = None
        if not self.first.cancel() and not self.first.cancelled():
            self.first.exception()  # somebody else has told of it

    def lost(self, index: int, reason: str) -> None:
        """The engine has given the rail up."""
        rail = self.rails[index]
        rail.ended += 1
        if rail.carrier is None or rail.ended < rail.added:
            return  # it was replaced in the meantime
        rail.carrier.close()
        rail.carrier, rail.tries, rail.why, rail.refused = None, 0, reason, False
        rail.lost_at = time.monotonic()
        rail.missing.set()
        _log.info("link to rank %d: rail %d (%s) lost: %s", *self._named(rail), reason)

    def missing(self) -> str:
        """The rails that are not there, each with the reason."""
        return "; ".join(
            f"{rail.plan.name}: {rail.why}" for rail in self.rails.values() if not rail.carrier
        )

    async def answer(self, line: Line, first: bytes, hello: Hello) -> None:
        """Take up a call. Raises SlacklineError or OSError when it comes from somebody else."""
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
        return Terms(refusal=self._gone[:_REASON_LETTERS]), ()

    def _failed(self, task: asyncio.Task[None]) -> None:
        """Whoever waits for the peer must not wait for a task that is dead."""
        if not task.cancelled() and task.exception() is not None and not self.first.done():
            self.first.set_exception(InternalError("the keeper of links failed", peer=self.rank))

    async def _keep(self, rail: _Rail) -> None:
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
        """See that the way to the caller's door is open: only then a closed door means anything."""
        source, targets = rail.way
        begin = time.monotonic()
        with contextlib.suppress(OSError):
            (await dial(targets, source, _MOST_CONNECT_S)).close()
            rail.proven_s = time.monotonic() - begin

    async def _knock(self, rail: _Rail) -> None:
        """See whether the peer is there; it is its part to call."""
        if not rail.added:
            await asyncio.sleep(_AGAIN_S)  # it is only beginning
        if rail.missing.is_set():
            async with self._talk(rail, "knock"):
                raise LinkError("it did not call")

    async def _call(self, rail: _Rail) -> None:
        async with self._talk(rail, rail.plan.kind) as (line, session, terms):
            sock = line.release()
            if (identity := self._site.identity) is not None and rail.plan.kind == "tcp":
                sock = await secure(sock, identity, session.certificate, server=False)
            self._put_up(rail, self._carry(rail, sock, session, terms))

    @contextlib.asynccontextmanager
    async def _talk(
        self, rail: _Rail, kind: str
    ) -> AsyncIterator[tuple[Line, Session, TermsMaker]]:
        """Dial, and have the handshake; what is done inside belongs to it."""
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
        """How long connecting may take: little where it is known to be quick."""
        if rail.proven_s is not None:
            return max(_CONNECT_S, 4 * rail.proven_s)
        return min(_MOST_CONNECT_S, _CONNECT_S * 2.0 ** min(rail.tries, 8))

    def _carry(
        self, rail: _Rail, sock: socket.socket, session: Session, terms: TermsMaker
    ) -> Carrier:
        site, checks = self._site, self._checksums
        return carry(site, self.link, rail.plan, sock, session, terms, checksums=checks)

    def _put_up(self, rail: _Rail, carrier: Carrier) -> None:
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
        """Look whether the peer's process has ended."""
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
        if not self.first.done():
            self.first.set_exception(PeerError(f"rank {self.rank}: {reason}", peer=self.rank))
        self._site.engine.unreachable(self.link, reason)

    def _named(self, rail: _Rail) -> tuple[int, int, str]:
        return self.rank, rail.plan.index, rail.plan.name
