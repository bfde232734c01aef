"""Replicas of a pipeline: activations from stage to stage, gradients from replica to replica.

    replica 0   stage 0 ===== stage 1 ===== stage 2      activations and their gradients
                   :             :             :
                   :             :             :         all_reduce of a stage's gradients
    replica 1   stage 0 ===== stage 1 ===== stage 2

A rank begins the all_reduce of a stage when it has computed the last microbatch's gradient of the
weights, while other stages still compute. Activations are sent before gradients that wait for the
same NIC.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from slackline.errors import UsageError
from slackline.faults import Plan
from slackline.plan.collective import Collective, CollectivePlan, generate
from slackline.plan.pipeline import Instruction, Kind, Order, PipelinePlan, Scenario
from slackline.sim._alike import check_alike
from slackline.sim._execution import Execution
from slackline.sim._fabric import Fabric
from slackline.sim._machine import Machine
from slackline.sim._operation import Operation
from slackline.sim._pipeline import PipelineExecution, Run
from slackline.sim._rotation import Rotation

__all__ = ["HybridRun", "simulate_hybrid"]

_GRADIENTS = 1
"""The priority of gradients; activations have 0 and are sent first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridRun:
    """The outcome of one iteration of all replicas; times in picoseconds."""

    pipelines: tuple[Run, ...]
    """For each replica, the instructions that its ranks computed, with their times."""
    reduced_ps: tuple[int, ...]
    """For each stage, the time at which all replicas had the sum of its gradients."""
    makespan_ps: int
    """The time at which everything was computed and reduced."""
    sent_bytes: tuple[int, ...]
    """For each host, the bytes that its NICs have sent."""
    events: int
    """The number of events that were executed."""


def simulate_hybrid(
    plan: PipelinePlan,
    scenario: Scenario,
    fabric: Fabric,
    *,
    replicas: int,
    message_bytes: Sequence[int],
    gradient_bytes: Sequence[int],
    all_reduce: Callable[[int], Operation] | None = None,
    order: Order = "fixed",
    placement: Sequence[int] | None = None,
    faults: Plan | None = None,
    alike: bool = False,
    blocking: bool = False,
) -> HybridRun:
    """Simulate one iteration of `replicas` replicas of a pipeline.

    The scenario gives times and memory; its delays must be 0, since messages cross the fabric.
    `message_bytes`: the size of an activation, and of its gradient, on each link between stages.
    `gradient_bytes`: the size of each stage's gradients, which `all_reduce(nbytes)`, a ring if not
    given, sums over the replicas; its plan must have no helpers. `placement`: the host of rank p of
    replica r, at index r * ranks + p; without `placement` that index is also the number of the
    host.

    With `alike` one replica is simulated, which stands for all. `fabric` and `placement` then have
    the hosts of one replica; each other replica has equal hosts of its own, and there are no
    faults. The plan for the gradients must be the same on all ranks up to renumbering, as a ring
    is, and must cut the gradients evenly. The results are those of one replica.

    With `blocking` a rank computes nothing from the end of an instruction until its message has
    arrived, as with sends that are kernels on one GPU stream.

    Raises UsageError for values that do not fit, and LinkError, PeerError and TimeoutError as
    `simulate_collective` does.
    """
    if replicas < 1:
        raise UsageError(f"replicas must be a positive integer, not {replicas}")
    if plan.stages != scenario.stages:
        raise UsageError(f"the plan has {plan.stages} stages, the scenario {scenario.stages}")
    if any((*scenario.forward_delay_ps, *scenario.backward_delay_ps)):
        raise UsageError("messages cross the fabric, so all delays of the scenario must be 0")
    for name, given, wanted in (
        ("message_bytes", message_bytes, plan.stages - 1),
        ("gradient_bytes", gradient_bytes, plan.stages),
    ):
        if len(given) != wanted:
            raise UsageError(f"{name} must have {wanted} sizes, not {len(given)}")
        if min(given, default=0) < 0:
            raise UsageError(f"every size in {name} must be at least 0, not {min(given)}")
    if all_reduce is None:
        ring = generate(Collective.ALL_REDUCE, "ring", replicas)
        all_reduce = partial(_of_bytes, ring)
    reductions = [replace(all_reduce(nbytes), priority=_GRADIENTS) for nbytes in gradient_bytes]
    for reduction in reductions:
        if reduction.plan.members != replicas:
            raise UsageError(f"{reduction.plan} must have {replicas} members, as many as replicas")
    if alike and faults:
        raise UsageError(f"alike replicas must not have faults, not {faults}")
    if alike and fabric.shared_cores is not None:
        raise UsageError(f"alike replicas share no cores: shared_cores is {fabric.shared_cores}")
    rotations = [check_alike(each, 1) if alike else None for each in reductions]
    simulated = 1 if alike else replicas
    ranks = simulated * plan.ranks
    hosts = tuple(range(ranks)) if placement is None else tuple(placement)
    if len(hosts) != ranks:
        raise UsageError(f"placement must have {ranks} hosts, not {len(hosts)}")
    machine = Machine(fabric, hosts, faults)
    parts = list(zip(reductions, rotations, strict=True))
    return _Hybrid(machine, plan, scenario, parts, message_bytes, order, simulated, blocking).run()


class _Hybrid:
    """All replicas on one machine, and an execution for each message and each reduction."""

    def __init__(
        self,
        machine: Machine,
        plan: PipelinePlan,
        scenario: Scenario,
        reductions: Sequence[tuple[Operation, Rotation | None]],
        message_bytes: Sequence[int],
        order: Order,
        replicas: int,
        blocking: bool,
    ) -> None:
        """Prepare `replicas` replicas; with `rotation`, one replica is simulated for all."""
        self._machine, self._plan, self._blocking = machine, plan, blocking
        message = generate(Collective.POINT_TO_POINT, "direct", 2, 0)
        self._messages = [_of_bytes(message, nbytes) for nbytes in message_bytes]
        self._reductions = [
            Execution(
                machine, operation, members=self._ranks_of(stage, replicas), rotation=rotation
            )
            for stage, (operation, rotation) in enumerate(reductions)
        ]
        self._missing = [[plan.microbatches] * plan.stages for _ in range(replicas)]
        self._replicas = [
            PipelineExecution(
                machine,
                plan,
                scenario,
                compute=partial(self._compute, replica),
                transfer=partial(self._transfer, replica),
                computed=partial(self._computed, replica),
                order=order,
            )
            for replica in range(replicas)
        ]

    def run(self) -> HybridRun:
        self._settle()
        self._machine.run(self._finished, self._settle)
        pipelines = tuple(replica.outcome() for replica in self._replicas)
        reduced_ps = tuple(
            max(map(execution.ended_ps, range(len(self._replicas))))
            for execution in self._reductions
        )
        return HybridRun(
            pipelines=pipelines,
            reduced_ps=reduced_ps,
            makespan_ps=max(*reduced_ps, *(run.makespan_ps for run in pipelines)),
            sent_bytes=tuple(self._machine.core.sent_bytes),
            events=self._machine.core.executed,
        )

    def _finished(self) -> bool:
        return all(execution.finished for execution in self._reductions) and all(
            replica.finished for replica in self._replicas
        )

    def _settle(self) -> None:
        for replica in self._replicas:
            replica.settle()

    def _ranks_of(self, stage: int, replicas: int) -> tuple[int, ...]:
        rank = self._plan.placement[stage]
        return tuple(replica * self._plan.ranks + rank for replica in range(replicas))

    def _compute(
        self, replica: int, rank: int, _: Instruction, work_ps: int, then: Callable[[], None]
    ) -> None:
        self._machine.compute(replica * self._plan.ranks + rank, work_ps, then)

    def _transfer(self, replica: int, rank: int, to: int, instruction: Instruction) -> None:
        forward = instruction.kind is Kind.F
        first = replica * self._plan.ranks

        def ended(member: int) -> None:
            if member == 1:
                self._replicas[replica].arrived(to, instruction)
                self._replicas[replica].unblock(rank)

        if self._blocking:
            self._replicas[replica].block(rank)
        execution = Execution(
            self._machine,
            self._messages[instruction.stage if forward else instruction.stage - 1],
            members=(first + rank, first + to),
            ended=ended,
        )
        execution.begin(0)
        execution.begin(1)

    def _computed(self, replica: int, rank: int, instruction: Instruction) -> None:
        """Begin a stage's reduction at this replica when the stage's last gradient is computed."""
        if instruction.kind not in (Kind.W, Kind.BW):
            return
        missing, stage = self._missing[replica], instruction.stage
        missing[stage] -= 1
        if not missing[stage]:
            self._reductions[stage].begin(replica)


def _of_bytes(plan: CollectivePlan, nbytes: int) -> Operation:
    """Return an operation over `nbytes` bytes, in elements of 4 bytes if 4 divides `nbytes`."""
    itemsize = 4 if nbytes % 4 == 0 else 1
    return Operation(plan=plan, count=nbytes // itemsize, itemsize=itemsize)
