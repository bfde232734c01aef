"""A collective that is called again and again, as benchmarks call it: pause, barrier, call.

    rank 0   call . barrier call . barrier call       . the pause of every rank
    rank 1   call . barrier call . barrier call

A port whose token bucket the previous call has emptied begins the next call with the bytes of the
pause and the barrier only.
"""

from collections.abc import Sequence

from slackline.errors import UsageError
from slackline.plan.collective import Collective, generate
from slackline.sim._execution import Execution
from slackline.sim._fabric import Fabric
from slackline.sim._machine import Machine
from slackline.sim._operation import Operation

__all__ = ["simulate_series"]


def simulate_series(
    operation: Operation,
    fabric: Fabric,
    *,
    calls: int,
    pause_ps: int = 0,
    barrier: str = "direct",
    placement: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Return the picoseconds of each call, from the last rank's start to the last rank's end.

    Each rank waits for `pause_ps` after a call, then passes a barrier, and begins the next call;
    the first call has a barrier before it too. `barrier` is the name of the barrier's plan; the
    engine's is `direct` for up to 8 ranks. `placement` is the host of each member, helpers
    included; without it member i is on host i. Raises UsageError for values that do not fit.
    """
    if calls < 1:
        raise UsageError(f"calls must be a positive integer, not {calls}")
    if pause_ps < 0:
        raise UsageError(f"pause_ps must be at least 0, not {pause_ps}")
    plan = operation.plan
    hosts = tuple(range(plan.members)) if placement is None else tuple(placement)
    if len(hosts) != plan.members:
        raise UsageError(f"placement must have {plan.members} members, not {len(hosts)}")
    waits = Operation(plan=generate(Collective.BARRIER, barrier, plan.ranks), count=0)
    return _Series(Machine(fabric, hosts), operation, waits, calls, pause_ps).run()


class _Series:
    """The executions in their order: a barrier, a call, the next barrier."""

    def __init__(
        self, machine: Machine, operation: Operation, waits: Operation, calls: int, pause_ps: int
    ) -> None:
        self._machine, self._operation, self._waits = machine, operation, waits
        self._calls, self._pause_ps = calls, pause_ps
        self._ranks = operation.plan.ranks
        self._executions: list[Execution] = []
        self._started_ps = [0] * (2 * calls)
        self._ended_ps = [0] * (2 * calls)
        self._under_way = self._ranks

    def run(self) -> tuple[int, ...]:
        for rank in range(self._ranks):
            self._machine.at(0, self._begin, rank, 0)
        self._machine.run(lambda: not self._under_way)
        return tuple(
            self._ended_ps[turn] - self._started_ps[turn] for turn in range(1, 2 * self._calls, 2)
        )

    def _begin(self, rank: int, turn: int) -> None:
        if turn == len(self._executions):
            self._executions.append(self._execution(turn))
        self._started_ps[turn] = self._machine.now_ps
        self._executions[turn].begin(rank)

    def _execution(self, turn: int) -> Execution:
        called = turn % 2 == 1
        operation = self._operation if called else self._waits
        members = operation.plan.members
        execution = Execution(
            self._machine,
            operation,
            members=range(members),
            ended=lambda member: self._ended(member, turn),
        )
        for helper in range(self._ranks, members):
            execution.begin(helper)
        return execution

    def _ended(self, member: int, turn: int) -> None:
        if member >= self._ranks:
            return
        now_ps = self._machine.now_ps
        self._ended_ps[turn] = now_ps
        if turn + 1 == 2 * self._calls:
            self._under_way -= 1
            return
        pause_ps = self._pause_ps if turn % 2 else 0
        self._machine.at(now_ps + pause_ps, self._begin, member, turn + 1)
