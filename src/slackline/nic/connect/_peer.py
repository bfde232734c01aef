"""A peer engine and the rails (connections) to it: connecting, reconnecting, liveness.

    missing ──dial, handshake────> up ──"lost"──> missing      the caller's side, a task per rail
    missing ──accept, handshake──> up ──"lost"──> missing      the listener's side waits

Nothing is dialled before `start`: a link that no operation needs has no rails and costs nothing. A
listening side whose operation needs the link makes a *liveness connect* to the caller's own
listener, and the caller then dials. The lower rank therefore always dials.

The caller reconnects a lost rail every 200 ms while the link lives. Meanwhile the listening side
repeats liveness connects, to learn whether the caller's process lives. A liveness connect names the
connection that the listening side has lost. If the caller has not noticed that loss, it drops the
connection too and makes a new one. A liveness connect that is refused where a connect succeeded
before means that the peer's process has ended; the engine then closes the link.

Ranks of one host are to share memory. If one of them cannot map the other's memory, it says so in
the handshake, and rails over the network replace the shared memory: the caller dials them, and the
listener follows when the first such connection comes in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial

from slackline.errors import InternalError, LinkError, PeerError, SlacklineError
from slackline.nic.connect._address_exchange import exchange, read_addresses
from slackline.nic.connect._addresses import Interface
from slackline.nic.connect._handshake import Session, call, fresh_nonce, listen, map_nothing
from slackline.nic.connect._handshake_channel import (
    HandshakeChannel,
    answer_from,
    dial,
    ends_of,
    run_handshake,
)
from slackline.nic.connect._listener import unix_name
from slackline.nic.connect._messages import Answer, Hello, TransportParameters
from slackline.nic.connect._paths import LongPacketsLostError, RailPlan, adopted, pair_of
from slackline.nic.connect._rail_handle import (
    LocalContext,
    NoSharedMemoryError,
    ParametersMaker,
    RailHandle,
    hand_over,
    secured,
)
from slackline.nic.connect._rail_set import AGAIN_S, MOST_CONNECT_S, PlanLink, RailSet, RailState
from slackline.nic.connect._rendezvous import EndpointDescriptor
from slackline.nic.connect._sockets import NoPortError, lacks_resources, past, ready

__all__ = ["Peer"]

_log = logging.getLogger("slackline.nic")

_HANDSHAKE_S = 3.0
_REASON_LETTERS = 500
_MOST_RAILS = 1024
_TRIALS = 3
"""The number of handshakes in which long packets vanish before the path counts as too narrow."""
_MOST_MEETINGS = 64
_TURN_S = 0.3
"""The time that the first call waits for a reply before it names another rendezvous, if any; each
further call waits for twice as long, since the path may be slow."""

Replan = Callable[[Sequence[Interface], Sequence[Interface]], tuple[RailPlan, ...]]
"""A function replan(ours, theirs) that returns the rails between the addresses of two engines."""


class Peer:
    """A peer engine: its rails, and the tasks that connect and reconnect them.

    `calls` says that this end dials and the peer listens. `shared` says that the link is to use
    shared memory. `plan` derives the rails when the link is needed. `told` are the addresses of
    this end that the peer knows. All methods must be called on the event loop's thread
    (ConnectionManager).
    """

    def __init__(
        self,
        context: LocalContext,
        link: int,
        rank: int,
        descriptor: EndpointDescriptor,
        key: bytes,
        code: int,
        plan: PlanLink,
        replan: Replan,
        *,
        told: tuple[Interface, ...],
        calls: bool,
        shared: bool,
        checksums: bool,
        on_rail: Callable[[Peer, RailPlan], None],
    ) -> None:
        self.link, self.rank, self.calls = link, rank, calls
        self._meetings = {code: key}
        """The key of each rendezvous that may have made the link at the other end, by its code."""
        self.descriptor = descriptor
        self._context, self._checksums, self._on_rail = context, checksums, on_rail
        self.shared = shared
        self.rails = RailSet(partial(plan, shared), calls=calls, anywhere=context.anywhere)
        self._plan, self._replan, self._told = plan, replan, told
        self._unmapped = ""
        """The reason why the two ends cannot share memory; empty if none is known."""
        self._started = self._asks = self._settled = False
        self._tasks: list[asyncio.Task[None]] = []
        self._untold = False
        """Whether the peer does not know this end's present addresses."""
        self._teller: asyncio.Task[None] | None = None
        self._gone = ""
        """The reason why this end has closed the link; empty while it is open."""
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the first rail is up; fails when no rail can be made."""
        self.complete = asyncio.Event()
        """Set when all rails are up."""

    @property
    def has_rail(self) -> bool:
        """Whether at least one rail to the peer is up."""
        return self.rails.any_up

    @property
    def codes(self) -> tuple[int, ...]:
        """The public numbers of the rendezvous that may have made it; calls name the first."""
        return tuple(self._meetings)

    def meet_also(self, code: int, key: bytes) -> bool:
        """Accept the peer by a further rendezvous until a handshake; return whether it was added.

        Threads may open several groups at once, in another order at each end. The other end may
        then have made the link in another group than this end, and knows only that group as yet.
        """
        if self._settled or self._gone or len(self._meetings) >= _MOST_MEETINGS:
            return False
        self._meetings[code] = key
        return True

    def _settle(self, code: int) -> None:
        """Call from now on by the rendezvous in which both ends have recognized each other."""
        if not self._settled:
            self._settled = True
            self._meetings = {code: self._meetings[code], **self._meetings}

    def start(self, *, asks: bool = False) -> None:
        """Start the tasks that dial the peer, or that check the peer's liveness until it dials.

        With `asks`, an end that listens asks the peer at once to dial. Only the first call does
        anything. Without a path to the peer, operations wait, since an address may be added later.
        """
        if self._started or self._gone:
            return
        self._started, self._asks = True, asks
        try:
            self.rails.derive()
        except LinkError as error:
            self._context.engine.hindered(self.link, str(error))
        self._begin()

    def _begin(self) -> None:
        """Start the tasks of the rails, which are all missing."""
        for rail in self.rails:
            rail.missing.set()
            rail.lost_at = time.monotonic()
            if self.calls or self._asks or not (self.shared or rail.plan.trial):
                self._watch_over(rail)
        if self._context.interfaces() != self._told:  # A NIC was added since the rendezvous.
            self.addresses_changed()

    def addresses_changed(self) -> None:
        """Handle a change of this end's addresses: tell the peer, and plan the rails anew.

        Before `start` nothing needs to be done.
        """
        if self.shared or not self._started:
            return
        self._untold = True
        self._plan_anew()
        if self._teller is None or self._teller.done():
            self._teller = self._context.manager.spawn(self._tell())
            self._tasks.append(self._teller)

    def dismiss(self, why: str) -> None:
        """Close all rails to the peer and stop their tasks; the link must be down or unused."""
        self._gone = why or "it is down"
        for task in self._tasks:
            task.cancel()
        for rail in self.rails:
            if rail.task is not None:
                rail.task.cancel()
            if rail.handle is not None:
                rail.handle.close()
                rail.handle = None
        if not self.first.cancel() and not self.first.cancelled():
            self.first.exception()  # Without this read, asyncio would log the exception again.
        # The error refers to the variables of all callers, and this closed link is kept for long.
        self.first = asyncio.get_running_loop().create_future()
        self.first.cancel()

    def release(self) -> None:
        """Let go of the tasks, which refer to this peer; the event loop must have stopped."""
        self._tasks.clear()
        self._teller = None
        for rail in self.rails:
            rail.task = None
            if rail.handle is not None:
                rail.handle.close()
                rail.handle = None

    def starve(self, error: Exception) -> None:
        """Fail a group that waits for the first rail if descriptors, memory or ports lack here.

        The cause is here and not at the peer, and further attempts would wait for the deadline.
        """
        lacking = lacks_resources(error) or isinstance(error, NoPortError)
        if lacking and not self.first.done():
            self.first.set_exception(error)

    def lost(self, index: int, reason: str) -> None:
        """Handle the loss of a rail: close its connection and let its task reconnect."""
        rail = self.rails.get(index)
        if rail is None:
            return  # The rail was given up together with its addresses.
        rail.ended += 1
        if rail.handle is None or rail.ended < rail.added:
            return  # A new connection has already replaced the lost connection.
        rail.handle.close()
        rail.handle, rail.tries, rail.why, rail.refused = None, 0, reason, False
        rail.too_long = 0
        rail.lost_at = time.monotonic()
        rail.missing.set()
        _log.info("link to rank %d: rail %d (%s) lost: %s", *self._named(rail), reason)
        if not rail.planned:
            self.rails.remove(rail)

    def missing(self) -> str:
        """Return a text that lists the missing rails, each with the reason."""
        from slackline.nic.connect._remedies import behind_nat  # As above: most rails come up.

        return self.rails.missing() + behind_nat(self.rails, self._context.interfaces(), self.rank)

    async def answer(
        self, channel: HandshakeChannel, code: int, first: bytes, hello: Hello
    ) -> None:
        """Complete the handshake on an accepted connection that began with `hello`.

        `code` is the number of the rendezvous that the other end has named.

        Takes over the socket of `channel`. Raises SlacklineError or OSError if the other end is not
        the peer, or the rail is not expected.
        """
        talks_only = hello.kind in ("liveness", "news")
        if code not in self._meetings:
            raise LinkError("both ends have met in another rendezvous")
        key = self._meetings[code]
        self.rails.derive()
        replaces = self._replaces_memory(hello)
        shared = self.shared and not replaces
        expected = replaces or self._expects(hello)
        if not expected or (channel.sock.family == socket.AF_UNIX) != shared:
            raise LinkError(f"a {hello.kind} connection for rail {hello.rail} was not expected")
        ours = Answer(
            engine=self._context.engine_name,
            nonce=fresh_nonce(),
            certificate=self._context.certificate.hex(),
            padding="" if talks_only or shared else channel.try_path(),
        )
        with ParametersMaker(self._context, hello.kind, channel.sock) as parameters:
            use = (self._refuse, map_nothing) if self._gone else (parameters.make, parameters.map)
            handshake = listen(first, hello, ours, key, *use)
            session = await run_handshake(channel, handshake, code)
            self._settle(code)
            if replaces and self._replaces_memory(hello) and not self._gone:
                self._leave_memory(self._unmapped or "the other rank cannot share memory")
            self.rails.connected_from(channel.sock)
            self.start()  # An operation of the peer needs the link.
            if session.unmapped:
                channel.close()
                self._cannot_share(session.unmapped)
                return
            if self._gone or talks_only:
                channel.close()
                if hello.kind == "liveness":
                    self._missed(hello)
                if hello.kind == "news" and not self._gone:
                    self._heard(read_addresses(session.theirs))
                return
            rail = self.rails.get(hello.rail) or self._adopt(hello, channel.sock)
            if rail.plan.path is not None and rail.plan.path.answers_from:
                answer_from(channel.sock, rail.plan.path.answers_from)
            sock = channel.release()
            if self._context.identity is not None and hello.kind == "tcp":
                sock = await secured(self._context.identity, sock, session, server=True)
            self._put_up(rail, self._hand_over(rail, sock, session, parameters))

    def _missed(self, hello: Hello) -> None:
        """Drop the rail's connection if it is the one that the peer says it has lost.

        This end may not have noticed the loss, because its own host drops the rail's packets. A
        call that the peer began before the present connection was made names an earlier one.
        """
        rail = self.rails.get(hello.rail)
        if rail is not None and rail.handle is not None and hello.lost == rail.job:
            rail.handle.broke("the peer has lost the connection")

    def _expects(self, hello: Hello) -> bool:
        """Return whether the peer may send this HELLO, before it has authenticated itself."""
        rail = self.rails.get(hello.rail)
        if hello.kind == "news":
            return not self.shared
        if hello.kind == "liveness" or self.calls:
            return self.calls and hello.kind == "liveness" and rail is not None
        if rail is not None:
            return rail.plan.kind == hello.kind
        kinds = {each.plan.kind for each in self.rails}
        return not self.shared and hello.kind in kinds and len(self.rails) < _MOST_RAILS

    def _replaces_memory(self, hello: Hello) -> bool:
        """Return whether a connection over the network may replace the planned shared memory.

        The caller decides this, and the listener follows as long as no memory is shared.
        """
        if not self.shared or self.calls or hello.kind == "shm":
            return False
        if any(rail.added for rail in self.rails):
            return False
        return hello.kind in {plan.kind for plan in self._plan(False)}

    def _cannot_share(self, why: str) -> bool:
        """Note why the two ends cannot share memory; return whether other rails can lead there.

        If not, the link is given up.
        """
        self._unmapped = why
        try:
            return len(self._plan(False)) > 0
        except LinkError as error:
            self._give_up(f"{error}; {why}", LinkError(f"{error}; {why}", peer=self.rank))
            return False

    def _leave_memory(self, why: str) -> None:
        """Plan rails over the network in place of the shared memory; if this end dials, dial."""
        if not self._cannot_share(why):
            return
        _log.warning("link to rank %d: TCP or UDP replaces shared memory: %s", self.rank, why)
        self.shared = False
        self._context.engine.use_wires(self.link)
        plan = partial(self._plan, False)
        self.rails = RailSet(plan, calls=self.calls, anywhere=self._context.anywhere)
        self.rails.derive()
        if self._started:
            self._begin()

    def _adopt(self, hello: Hello, sock: socket.socket) -> RailState:
        """Add a rail that the dialling rank has planned, perhaps from addresses unknown here."""
        theirs, ours = self.descriptor.interfaces, self._context.interfaces()
        plan = adopted(hello.rail, hello.kind, theirs, ours, ends_of(sock)[::-1])
        return self.rails.add(plan)

    def _heard(self, theirs: tuple[Interface, ...]) -> None:
        """Store the peer's present addresses in place of its earlier addresses."""
        if theirs != self.descriptor.interfaces:
            self.descriptor = replace(self.descriptor, interfaces=theirs)
            self._plan_anew()

    def _plan_anew(self) -> None:
        """Plan the rails between the present addresses; if this end dials, dial the new rails."""
        ours, theirs = self._context.interfaces(), self.descriptor.interfaces
        for rail in self.rails.plan_anew(
            self._replan(*((ours, theirs) if self.calls else (theirs, ours)))
        ):
            self._watch_over(rail)
        self._check_complete()

    async def _tell(self) -> None:
        """Send this end's addresses to the peer until the peer has the latest addresses."""
        while self._untold:
            self._untold = False
            where = self.rails.all_attempts()
            try:
                self._heard(
                    await exchange(
                        self._context,
                        self.descriptor.engine,
                        self.codes[0],
                        self._meetings[self.codes[0]],
                        where,
                    )
                )
            except (OSError, SlacklineError) as error:
                _log.info("link to rank %d: not told of new addresses: %s", self.rank, error)
                self._untold = True
                await asyncio.sleep(AGAIN_S)

    def _watch_over(self, rail: RailState) -> None:
        """Start the task that connects a rail, or that checks the peer's liveness meanwhile."""
        rail.task = self._context.manager.spawn(self._keep(rail))
        rail.task.add_done_callback(self._failed)

    def _refuse(self) -> tuple[TransportParameters, tuple[int, ...]]:
        """Return transport parameters that tell the connecting engine why the link is closed."""
        return TransportParameters(refusal=self._gone[:_REASON_LETTERS]), ()

    def _failed(self, task: asyncio.Task[None]) -> None:
        """Fail the future of the first rail after an unexpected error, so that no caller hangs."""
        if not task.cancelled() and task.exception() is not None and not self.first.done():
            self.first.set_exception(InternalError("the connection manager failed", peer=self.rank))

    async def _keep(self, rail: RailState) -> None:
        """Whenever one rail is missing, dial it, or check the peer's liveness if the peer dials."""
        while True:
            await rail.missing.wait()
            failed = True
            try:
                await (self._call(rail) if self.calls else self._check_liveness(rail))
                failed = False
            except NoSharedMemoryError as error:
                self._leave_memory(str(error))
                return
            except (OSError, SlacklineError, MemoryError) as error:
                rail.tries += 1
                from slackline.nic.connect._remedies import doubt, reason  # Most rails come up.

                rail.why = reason(error, rail, self.rails, self._context.interfaces())
                rail.refused = isinstance(error, ConnectionRefusedError)
                self.starve(error)
                if isinstance(error, LongPacketsLostError):
                    self._path_is_too_narrow(rail)
                self._check_complete()
                if not self.has_rail:
                    self._context.engine.hindered(self.link, self.missing())
                if self.rails.peer_has_ended(time.monotonic()):
                    self._give_up(
                        f"its process has ended ({self.missing()}){doubt(self.rails, self.shared)}"
                    )
            if failed:
                await asyncio.sleep(self.rails.pause_s(rail))

    def _path_is_too_narrow(self, rail: RailState) -> None:
        """Count a trial in which long packets vanished; after several, fail a waiting group."""
        rail.too_long += 1
        if rail.too_long != _TRIALS:
            return
        _log.warning("link to rank %d: rail %d (%s): %s", *self._named(rail), rail.why)
        if not (self.has_rail or self.first.done()):
            text = f"no long message passes to or from rank {self.rank}: {rail.why}"
            self.first.set_exception(LinkError(text, peer=self.rank))

    async def _prove(self, rail: RailState) -> None:
        """Connect once to the peer's listener, to learn that the network allows such connections.

        Only then does a refused connection later mean that the peer's process has ended.
        """
        begin = time.monotonic()
        with contextlib.suppress(OSError, LinkError):
            (await dial(self.rails.attempts(rail), MOST_CONNECT_S)).close()
            rail.proven_s = time.monotonic() - begin

    async def _check_liveness(self, rail: RailState) -> None:
        """Ask the peer to dial, and check that the peer's process lives, until the peer dials."""
        if not (rail.added or self._asks):
            await asyncio.sleep(AGAIN_S)  # The peer may only be starting to dial.
        if rail.missing.is_set():
            async with self._handshake(rail, "liveness"):
                raise LinkError("it did not call")

    async def _call(self, rail: RailState) -> None:
        """Connect one rail as the dialling side and hand it to the engine."""
        async with self._handshake(rail, rail.plan.kind) as (channel, session, parameters):
            if session.unmapped:
                raise NoSharedMemoryError(session.unmapped)
            sock = channel.release()
            if (identity := self._context.identity) is not None and rail.plan.kind == "tcp":
                sock = await secured(identity, sock, session, server=False)
            if not self.shared:
                ends = ends_of(sock)
                rail.pair = pair_of(self._context.interfaces(), self.descriptor.interfaces, ends)
            self._put_up(rail, self._hand_over(rail, sock, session, parameters))

    @contextlib.asynccontextmanager
    async def _handshake(
        self, rail: RailState, kind: str
    ) -> AsyncIterator[tuple[HandshakeChannel, Session, ParametersMaker]]:
        """Connect to the peer and complete the handshake, as a context manager.

        The time limit counts the waits for the peer: an answer that is there is used, however late
        this process comes to read it, because the peer may already use the rail. With a rank of
        this host there is no limit: if its process ends, the connection ends, and if the connection
        of a finished handshake ended, the peer would take this process for dead. The socket is
        closed on exit unless the body of the `with` statement released it.
        """
        context, plan = self._context, rail.plan
        hello = Hello(
            engine=context.engine_name,
            peer=self.descriptor.engine,
            rail=plan.index,
            kind=kind,
            nonce=fresh_nonce(),
            certificate=context.certificate.hex(),
            lost=rail.job if kind == "liveness" else 0,
        )
        where = (
            unix_name(self.descriptor.engine) if plan.kind == "shm" else self.rails.attempts(rail)
        )
        begin = time.monotonic()
        sock = await dial(where, rail.patience_s)
        took = time.monotonic() - begin
        channel = HandshakeChannel(sock, None if plan.kind == "shm" else _HANDSHAKE_S)
        try:
            padding = "" if kind in ("liveness", "shm") else channel.try_path()
            with ParametersMaker(context, kind, channel.sock, padding) as parameters:
                code = self.codes[0]
                session = await run_handshake(
                    channel,
                    call(hello, self._meetings[code], parameters.make, parameters.map),
                    code,
                    before_reply=partial(self._first_reply, channel, rail),
                )
                self._settle(code)
                rail.proven_s = took
                if session.theirs.refusal:
                    self._give_up(f"the peer has closed the link: {session.theirs.refusal}")
                    raise LinkError("the peer has closed the link")
                yield channel, session, parameters
        finally:
            channel.close()

    async def _first_reply(self, channel: HandshakeChannel, rail: RailState) -> None:
        """Wait for the reply to a HELLO; if the peer may know another rendezvous, only shortly.

        In that case raises LinkError, and the next call names the next rendezvous.
        """
        loop = asyncio.get_running_loop()
        while not past(channel.until_s):
            turn_s = loop.time() + _TURN_S * 2.0 ** min(rail.tries, 4)
            until_s = turn_s if channel.until_s is None else min(turn_s, channel.until_s)
            await ready(channel.sock, until_s=until_s)
            try:
                channel.sock.recv(1, socket.MSG_PEEK)
                return
            except BlockingIOError:
                if len(self._meetings) > 1 and not self._settled:
                    code = self.codes[0]
                    self._meetings[code] = self._meetings.pop(code)  # It is now the last one.
                    raise LinkError("the peer has not come to this rendezvous yet") from None

    def _hand_over(
        self, rail: RailState, sock: socket.socket, session: Session, parameters: ParametersMaker
    ) -> RailHandle:
        context, checks = self._context, self._checksums
        rail.job = session.job
        return hand_over(context, self.link, rail.plan, sock, session, parameters, checksums=checks)

    def _put_up(self, rail: RailState, handle: RailHandle) -> None:
        """Register a rail's new connection in place of any old one, and report the rail as up."""
        if rail.handle is not None:
            rail.handle.close()
        rail.handle = handle
        rail.added += 1
        if rail.task is None and not self.shared:
            self._watch_over(rail)
        rail.missing.clear()
        if rail.added > 1:
            gone = time.monotonic() - rail.lost_at
            _log.info(
                "link to rank %d: rail %d (%s) is back after %.1f s", *self._named(rail), gone
            )
        else:
            _log.info("link to rank %d: rail %d (%s)", *self._named(rail))
        self._on_rail(self, rail.plan)
        if not self.calls and not self.shared and rail.proven_s is None:
            self._tasks.append(self._context.manager.spawn(self._prove(rail)))
        if not self.first.done():
            self.first.set_result(None)
        self._check_complete()

    def _check_complete(self) -> None:
        """Set `complete` when no further rail can be expected soon."""
        if self.rails.all_tried:
            self.complete.set()

    def _give_up(self, reason: str, error: SlacklineError | None = None) -> None:
        """Fail all calls that wait for this peer, and have the engine close the link.

        The calls get `error`, or a PeerError with the reason.
        """
        if not self.first.done():
            self.first.set_exception(
                error or PeerError(f"rank {self.rank}: {reason}", peer=self.rank)
            )
        self._context.engine.unreachable(self.link, reason)

    def _named(self, rail: RailState) -> tuple[int, int, str]:
        return self.rank, rail.plan.index, rail.plan.name
