"""A collective on an otherwise idle fabric: its duration, its frames and its results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slackline.errors import UsageError
from slackline.faults import Plan
from slackline.sim._execution import Arithmetic, Execution, SentFrame
from slackline.sim._fabric import Fabric
from slackline.sim._machine import LIMIT_PS, Machine
from slackline.sim._operation import Operation

__all__ = ["CollectiveRun", "simulate_collective"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRun:
    """The outcome of a simulated collective; times in picoseconds from the start."""

    ended_ps: tuple[int, ...]
    """For each rank, the time at which the rank had its result and all its frames had left."""
    values: tuple[Mapping[int, tuple[Any, ...]], ...]
    """For each rank, the final value of each chunk that is due there, segment by segment; empty
    without arithmetic."""
    frames: tuple[SentFrame, ...]
    """The frames in the order in which they were queued; empty unless they were recorded."""
    messages: int
    """The number of frames."""
    sent_bytes: tuple[int, ...]
    """For each host, the bytes that its NICs have sent, including headers of frames and packets."""
    received_bytes: tuple[int, ...]
    """For each host, the bytes that its NICs have received."""
    resent_packets: int
    """The number of packets that were lost and sent again."""
    events: int
    """The number of events that were executed."""

    @property
    def duration_ps(self) -> int:
        """The time from the start of the simulation to the end of the last rank."""
        return max(self.ended_ps)


def simulate_collective(
    operation: Operation,
    fabric: Fabric,
    *,
    placement: Sequence[int] | None = None,
    faults: Plan | None = None,
    starts_ps: Sequence[int] | None = None,
    arithmetic: Arithmetic | None = None,
    record: bool = False,
    limit_ps: int = LIMIT_PS,
) -> CollectiveRun:
    """Execute a collective's plan on a fabric; the same arguments give the same result.

    `placement` is the host of each member, helpers included; without it member i is on host i.
    `starts_ps` is the time at which each member begins, 0 without it. `arithmetic` gives the values
    that are moved and reduced; without it only times are computed. `limit_ps` is the simulated time
    after which the simulation gives up, an hour if not given. Raises UsageError for arguments that
    contradict each other, and LinkError, PeerError or TimeoutError where faults keep the collective
    from ending.
    """
    members = operation.plan.members
    hosts = tuple(range(members)) if placement is None else tuple(placement)
    starts = (0,) * members if starts_ps is None else tuple(starts_ps)
    for name, given in (("placement", hosts), ("starts_ps", starts)):
        if len(given) != members:
            raise UsageError(f"{name} must have {members} members, not {len(given)}")
    if min(starts) < 0:
        raise UsageError(f"every time in starts_ps must be at least 0, not {min(starts)}")
    machine = Machine(fabric, hosts, faults, limit_ps=limit_ps)
    execution = Execution(machine, operation, arithmetic=arithmetic, record=record)
    for member, start_ps in enumerate(starts):
        machine.at(start_ps, execution.begin, member)
    machine.run(lambda: execution.finished)
    ranks = range(operation.plan.ranks)
    return CollectiveRun(
        ended_ps=tuple(map(execution.ended_ps, ranks)),
        values=tuple(map(execution.values, ranks)),
        frames=execution.frames,
        messages=execution.messages,
        sent_bytes=tuple(machine.core.sent_bytes),
        received_bytes=tuple(machine.core.received_bytes),
        resent_packets=machine.core.resent_packets,
        events=machine.core.executed,
    )
