"""Fault injection inside an engine: delays, losses and cuts of its own frames, without root.

Each end of a rail applies the faults of its own sending direction, so all ranks must have the same
fault plan. Host numbers in a plan are ranks of the nic's first group, and NIC numbers are positions
in a rank's list of interfaces. Time 0 is when the first group has its links, before the links are
measured: ranks start within milliseconds of each other. Faults of ranks (kill, stop, slow) are
ignored here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import slackline._native as _native
from slackline.faults import NOTHING, Effects, NetworkState, Plan, Scheduler
from slackline.nic.connect._rendezvous import EndpointDescriptor

__all__ = ["WHOLE_LINK", "Injector", "RailDirection"]

WHOLE_LINK = -1
SetFault = Callable[[int, int, "_native.FaultState | None"], None]


@dataclass(frozen=True, kw_only=True)
class RailDirection:
    """The sending direction of one rail, from this rank to another."""

    link: int
    rail: int
    """The index of the rail in its link; WHOLE_LINK for shared memory."""
    peer: str
    """The name of the peer's engine."""
    nic_here: int
    nic_there: int


class Injector:
    """The task that applies a fault plan by calling `set_fault` at each change.

    All methods must be called on the event loop's thread (ConnectionManager).
    """

    def __init__(
        self, plan: Plan, set_fault: SetFault, *, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """Wait for `begin`; `clock` returns the time in nanoseconds, which must not decrease."""
        self._scheduler, self._set_fault = Scheduler(plan.of_network), set_fault
        self._clock = clock
        self._network = NetworkState()
        self._here = 0
        self._hosts: dict[str, int] = {}
        self._directions: dict[tuple[int, int], RailDirection] = {}
        self._in_force: dict[tuple[int, int], Effects] = {}
        self._task: asyncio.Task[None] | None = None

    def rail_is_up(self, direction: RailDirection) -> None:
        """Register a new rail, which has no faults yet, and apply the present faults to it."""
        key = direction.link, direction.rail
        self._directions[key] = direction
        self._in_force.pop(key, None)
        self._update(key)

    def forget(self, link: int) -> None:
        """Unregister all rails of a link that is down."""
        for key in [key for key in self._directions if key[0] == link]:
            del self._directions[key]
            self._in_force.pop(key, None)

    def begin(self, here: int, descriptors: Sequence[EndpointDescriptor]) -> None:
        """Start the plan's clock when the first group has its links; later groups change nothing.

        Raises UsageError for a fault of a rank or NIC that does not exist.
        """
        plan = self._scheduler.plan
        if self._scheduler.started or not plan:
            return
        nics = max(len({each.nic for each in descriptor.interfaces}) for descriptor in descriptors)
        plan.check(len(descriptors), nics)
        self._here = here
        self._hosts = {descriptor.engine: rank for rank, descriptor in enumerate(descriptors)}
        now_ns = self._clock()
        self._scheduler.start(now_ns)
        next_ns = self._apply(now_ns)
        self._task = asyncio.get_running_loop().create_task(self._run(next_ns))

    async def _run(self, next_ns: int | None) -> None:
        """Apply each change at its time; after a delay, all changes that are due, in order."""
        while next_ns is not None:
            await asyncio.sleep(max(0, next_ns - self._clock()) / 1e9)
            next_ns = self._apply(next_ns)

    def _apply(self, now_ns: int) -> int | None:
        """Apply the faults of that time to all rails; return the time of the next change."""
        state = self._scheduler.advance(now_ns)
        self._network = state.network
        for key in self._directions:
            self._update(key)
        return state.next_ns

    def _update(self, key: tuple[int, int]) -> None:
        """Apply the present faults to one rail, if they have changed."""
        direction = self._directions[key]
        there = self._hosts.get(direction.peer)
        if there is None:
            return  # The peer was not in the first group, so the plan has no number for it.
        effects = self._network.on((self._here, direction.nic_here), (there, direction.nic_there))
        if effects != self._in_force.get(key, NOTHING):
            self._in_force[key] = effects
            self._set_fault(direction.link, direction.rail, _state(effects))


def _state(effects: Effects) -> _native.FaultState | None:
    """Return the engine's form of combined faults; None without any."""
    if effects == NOTHING:
        return None
    return _native.FaultState(
        delay_ns=effects.delay_ns,
        jitter_ns=effects.jitter_ns,
        rate=effects.bytes_per_second,
        loss=effects.loss,
        duplicate=effects.duplicate,
        reorder=effects.reorder,
        corrupt=effects.corrupt,
        down=effects.down,
        seed=effects.seed,
    )
