"""The connection manager's view of one link's rails: each is connected or missing.

The rails are derived from the addresses of both ends when the link is needed, not before.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from slackline.errors import LinkError
from slackline.nic.connect._handshake_channel import ends_of
from slackline.nic.connect._paths import Attempt, RailPlan, extend_rails
from slackline.nic.connect._rail_handle import RailHandle

__all__ = ["AGAIN_S", "MOST_CONNECT_S", "Plan", "PlanLink", "RailSet", "RailState"]

Plan = Callable[[], Sequence[RailPlan]]
"""A function that derives the rails between two engines, equally at both ends. Raises LinkError if
no rail can lead from one engine to the other."""
PlanLink = Callable[[bool], Sequence[RailPlan]]
"""A function that derives, as a Plan does, one rail in shared memory if its argument is true, else
the rails over the network."""

AGAIN_S = 0.2
_FIRST_AGAIN_S = 0.02
_SEARCH_AGAIN_S = 10.0
"""The longest pause between two searches of a path that no subnet promises."""
_CONNECT_S = 0.3
MOST_CONNECT_S = 1.0
_SETTLED_S = 0.5
"""The time after which a peer that was never reached and refuses connections counts as dead."""
_UNPROVEN_S = 3.0
"""The same limit for a peer that has connected to this rank: a firewall may refuse connections in
the other direction."""


@dataclass(eq=False)
class RailState:
    """The state of one rail: its path, its connection, and the attempts since it was lost."""

    plan: RailPlan
    missing: asyncio.Event = field(default_factory=asyncio.Event)
    handle: RailHandle | None = None
    """The handle of the rail's connection; None while the rail is missing."""
    added: int = 0
    """The number of connections of this rail that were handed to the engine so far."""
    job: int = 0
    """The number (Session.job) of the latest connection of this rail; 0 before the first one."""
    ended: int = 0
    """The number of this rail's connections that have ended; equal to `added` if all have ended."""
    tries: int = 0
    """The number of failed attempts to connect since the rail was lost."""
    why: str = "it was not tried yet"
    """The reason why the last attempt failed, or why the rail was lost."""
    too_long: int = 0
    """The number of attempts since the rail was lost that failed because long packets vanish."""
    refused: bool = False
    """Whether the last attempt was refused because no process listens at the address."""
    proven_s: float | None = None
    """The duration of the last successful connect to the peer; None before the first success."""
    lost_at: float = field(default_factory=time.monotonic)
    pair: str = ""
    """The two NICs of the present connection, as "eth0>eth1"; empty if unknown."""
    planned: bool = True
    """Whether the present addresses still give this rail; if not, it ends with its connection."""
    task: asyncio.Task[None] | None = None
    """The task that connects the rail or checks the peer's liveness; None without one."""

    @property
    def patience_s(self) -> float:
        """The time limit of a connect in seconds; it is short after a quick connect succeeded."""
        if self.proven_s is not None:
            return max(_CONNECT_S, 4 * self.proven_s)
        return min(MOST_CONNECT_S, _CONNECT_S * 2.0 ** min(self.tries, 8))


class RailSet:
    """The rails of a link by index, none before `derive`. `calls` says that this end dials them.

    `anywhere` says that this end may connect to all addresses that the peer names; otherwise it
    connects only to the addresses that an authenticated connection of the peer came from.
    """

    def __init__(self, plan: Plan, *, calls: bool, anywhere: bool = True) -> None:
        self._plan: Plan | None = plan
        self.calls = calls
        self._seen: set[str] | None = None if anywhere else set()
        """The addresses that this end may connect to; None for all."""
        self._rails = dict[int, RailState]()

    def derive(self) -> None:
        """Derive the rails, which are not connected yet; only the first call does anything.

        Raises LinkError if no rail can lead to the peer.
        """
        if self._plan is not None:
            self._rails = {plan.index: RailState(plan) for plan in self._plan()}
            self._plan = None

    def __iter__(self) -> Iterator[RailState]:
        return iter(tuple(self._rails.values()))

    def __len__(self) -> int:
        return len(self._rails)

    def get(self, index: int) -> RailState | None:
        """Return the rail with this index; None without one."""
        return self._rails.get(index)

    def add(self, plan: RailPlan) -> RailState:
        """Add a rail, missing as yet, with a new index."""
        rail = self._rails[plan.index] = RailState(plan)
        rail.missing.set()
        return rail

    def remove(self, rail: RailState) -> None:
        """Give up a rail and cancel its task."""
        self._rails.pop(rail.plan.index, None)
        if rail.task is not None:
            rail.task.cancel()

    @property
    def any_up(self) -> bool:
        """Whether at least one rail is connected."""
        return any(rail.handle for rail in self)

    @property
    def all_tried(self) -> bool:
        """Whether no further rail can be expected soon.

        Where a subnet promises a path, the link does not wait for searches of other paths. Where no
        subnet promises a path, the caller waits for the first round of its searches; the other end
        does not know of these searches.
        """
        if sure := [rail for rail in self if not rail.plan.trial]:
            return all(rail.handle for rail in sure)
        return self.any_up and all(rail.added or rail.tries or not self.calls for rail in self)

    @property
    def telling(self) -> list[RailState]:
        """The rails whose failures suggest that the peer has ended; a failed search does not."""
        return [rail for rail in self if rail.added or not rail.plan.trial] or list(self)

    def pause_s(self, rail: RailState) -> float:
        """Return the time in seconds until a rail is dialled again."""
        if rail.plan.trial and not rail.added and self.any_up:
            return min(_SEARCH_AGAIN_S, AGAIN_S * 2.0 ** min(rail.tries, 8))
        return min(AGAIN_S, _FIRST_AGAIN_S * 2.0 ** min(rail.tries, 8))

    def peer_has_ended(self, now_s: float) -> bool:
        """Return whether failed attempts show that the peer's process has ended.

        `now_s` is the time of time.monotonic().
        """
        rails = self.telling
        if any(rail.handle is not None or rail.tries == 0 for rail in rails):
            return False
        if known := [rail for rail in rails if rail.proven_s is not None]:
            return any(rail.refused for rail in known)
        patience_s = _UNPROVEN_S if any(rail.added for rail in rails) else _SETTLED_S
        waited_s = now_s - max(rail.lost_at for rail in rails)
        return all(rail.refused for rail in rails) and waited_s > patience_s

    def missing(self) -> str:
        """Return a text that lists the missing rails, each with the reason."""
        return "; ".join(f"{r.plan.name}: {r.why}" for r in self.telling if not r.handle)

    def connected_from(self, sock: socket.socket) -> None:
        """Note that the peer has authenticated itself on `sock`, which this end has accepted."""
        if self._seen is not None and sock.family != socket.AF_UNIX:
            self._seen.add(ends_of(sock)[1])

    def attempts(self, rail: RailState) -> tuple[Attempt, ...]:
        """Return the connection attempts for a rail, or for a liveness check on the rail's path.

        Raises LinkError that names the addresses if this end may connect to none of them.
        """
        wanted = self._wanted(rail)
        allowed = self._allowed(wanted)
        if wanted and not allowed:
            named = ", ".join(dict.fromkeys(each.address for each in wanted))
            raise LinkError(
                f"not connected to {named}: the peer has named the address, but not connected from "
                "it, and there is no key"
            )
        return allowed

    def _wanted(self, rail: RailState) -> tuple[Attempt, ...]:
        """Return the attempts that a rail's path gives."""
        if (path := rail.plan.path) is None:
            return ()
        spare = not self.any_up
        return tuple(
            each for each in (path.there if self.calls else path.back) if spare or not each.spare
        )

    def _allowed(self, attempts: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
        """Return those of `attempts` that this end may make."""
        if (seen := self._seen) is None:
            return attempts
        return tuple(each for each in attempts if each.address in seen)

    def all_attempts(self) -> tuple[Attempt, ...]:
        """Return the allowed connection attempts over any rail's path, connected rails' first."""
        rails = sorted(self, key=lambda rail: rail.handle is None)
        every = dict.fromkeys(each for rail in rails for each in self._wanted(rail))
        return self._allowed(tuple(every))

    def plan_anew(self, plans: Sequence[RailPlan]) -> list[RailState]:
        """Plan the rails again after a change of addresses; return the new rails.

        A rail keeps its index while its two NICs are the same. A rail whose addresses are gone is
        removed, unless it is still connected. Only the end that dials adds rails; the other end
        learns of a new rail when its connection comes in.
        """
        known = {rail.plan.key: rail for rail in self}
        if not self.calls:
            for plan in plans:
                if plan.key in known:
                    known[plan.key].plan = replace(plan, index=known[plan.key].plan.index)
            return []
        # A search may have found a path that a subnet promises only now: two NICs get one path.
        up = {(*rail.plan.key[:2], rail.pair) for rail in self if rail.handle}
        wanted = [plan for plan in plans if plan.key in known or plan.key not in up]
        for rail in self:
            rail.planned = False
        for plan in extend_rails([rail.plan for rail in self], wanted):
            rail = self._rails.get(plan.index) or self.add(plan)
            rail.plan, rail.planned = plan, True
        for rail in self:
            if not rail.planned and rail.handle is None:
                self.remove(rail)
        return [rail for rail in self if rail.task is None]
