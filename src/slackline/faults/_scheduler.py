"""The schedule of a fault plan on a clock: the plan's state at a time, and when the state changes.

Three machines carry out fault plans by a Scheduler, each with a clock of its own:

- A lab's thread, which asks for the state at the present time. After a delay the state of the
  network jumps to the present, and faults that are over by then are named in a warning.
- The task in an engine's event loop, which asks for the state at the time of each change. After a
  delay every change takes place nevertheless, one directly after the other.
- The simulator, whose clock reaches the time of each change exactly.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from slackline.faults._model import Fault
from slackline.faults._network import NetworkState
from slackline.faults._plan import Plan, RankState

__all__ = ["PlanState", "Scheduler"]


@dataclass(frozen=True, kw_only=True)
class PlanState:
    """The state of network and ranks that a plan requires at one moment."""

    at_ns: int
    """The moment, from the plan's time zero; 0 as long as the plan's clock stands."""
    network: NetworkState
    ranks: Mapping[int, RankState]
    """The states of the ranks that have a fault."""
    left_out: tuple[Fault, ...]
    """The faults that began after the previous state and are over by this one."""
    next_ns: int | None
    """The caller's time of the next change; None if the clock stands or nothing will change."""
    over: bool
    """Whether all faults are over; a plan whose clock stands is not over."""


class Scheduler:
    """A fault plan with a clock. The caller passes the time, in nanoseconds from any origin."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._zero_ns: int | None = None
        self._applied_ns = -1

    @property
    def started(self) -> bool:
        """Whether the plan's clock runs."""
        return self._zero_ns is not None

    def start(self, now_ns: int) -> None:
        """Let the plan's time zero be `now_ns`; do nothing if the clock already runs.

        Faults that begin at time 0 are in force even before the clock starts.
        """
        if self._zero_ns is None:
            self._zero_ns = now_ns

    def advance(self, now_ns: int) -> PlanState:
        """Return the state at `now_ns`, which must not be earlier than in the previous call.

        A caller that passes the `next_ns` of each state in turn leaves no fault out.
        """
        zero_ns = now_ns if self._zero_ns is None else self._zero_ns
        at_ns = now_ns - zero_ns
        left_out = self.plan.skipped(self._applied_ns, at_ns)
        self._applied_ns = at_ns
        change_ns = self.plan.next_change(at_ns) if self.started else None
        end_ns = self.plan.end_ns
        return PlanState(
            at_ns=at_ns,
            network=self.plan.network(at_ns),
            ranks=self.plan.ranks(at_ns),
            left_out=left_out,
            next_ns=None if change_ns is None else zero_ns + change_ns,
            over=self.started and end_ns is not None and at_ns >= end_ns,
        )
