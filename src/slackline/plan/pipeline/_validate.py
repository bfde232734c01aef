"""The validation of pipeline plans: a check that a plan runs to its end within memory.

A valid plan is complete: each stage does F (forward), and B and W (backwards for the input and for
the weights) or BW (both), of each microbatch once. A valid plan is ordered: F before B before W. A
valid plan is free of deadlock: no rank waits for ever. A valid plan is within memory: on each rank,
all activations together fit the caps of its stages together.
"""

from dataclasses import dataclass, replace
from itertools import accumulate

from slackline.errors import UsageError
from slackline.plan.pipeline._grid import grid
from slackline.plan.pipeline._instruction import Instruction, Kind
from slackline.plan.pipeline._plan import PipelinePlan
from slackline.plan.pipeline._replay import held_after, needs, walk
from slackline.plan.pipeline._scenario import Scenario, StageMemory

__all__ = ["Fault", "check", "validate"]

_ROWS = 60
"""The largest number of rows of a grid that an error message shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An error in a plan, with the instruction at which it shows."""

    stage: int
    rank: int
    index: int | None
    """The instruction's index in the rank's program; None where an instruction is missing."""
    instruction: str
    """The instruction's text without the stage."""
    reason: str
    over_cap: bool = False
    """Whether the plan can run, but does not fit the memory."""

    def __str__(self) -> str:
        return f"stage {self.stage}, {self.instruction}: {self.reason}"


def validate(plan: PipelinePlan, scenario: Scenario | None = None) -> PipelinePlan:
    """Check the plan and return it; raise UsageError with the first fault and a grid.

    The grid points at the faulty instruction. A plan that does not fit its caps gets no grid: the
    error has a second line, with the numbers of activations that the plan holds.
    """
    fault = check(plan, scenario)
    if fault is None:
        return plan
    if fault.over_cap and scenario is not None:
        raise UsageError(f"{plan}: {fault}.\n{_fitting(plan, scenario)}", rank=fault.rank)
    shown = ""
    if fault.index is not None and max(map(len, plan.programs)) <= _ROWS:
        shown = "\n" + grid(plan, (fault.rank, fault.index))
    raise UsageError(f"{plan}: {fault}{shown}", rank=fault.rank)


def check(plan: PipelinePlan, scenario: Scenario | None = None) -> Fault | None:
    """Return the first fault of the plan, or None.

    Without a scenario, memory is not checked. Raises UsageError where the plan and the scenario
    differ in stages or microbatches.
    """
    if scenario is not None:
        for name, mine, theirs in (
            ("stages", plan.stages, scenario.stages),
            ("microbatches", plan.microbatches, scenario.microbatches),
        ):
            if mine != theirs:
                raise UsageError(f"{plan}: the plan has {mine} {name}, the scenario {theirs}")
    return _incomplete(plan) or _deadlock(plan) or (scenario and _memory(plan, scenario)) or None


def _incomplete(plan: PipelinePlan) -> Fault | None:
    seen: set[tuple[int, Kind, int]] = set()
    for rank, index, instruction in plan.cells():
        stage, kind, microbatch = instruction.stage, instruction.kind, instruction.microbatch
        reason = None
        if stage >= plan.stages:
            reason = f"the plan has stages 0 to {plan.stages - 1}"
        elif plan.placement[stage] != rank:
            reason = f"stands on rank {rank}, but the stage is on rank {plan.placement[stage]}"
        elif microbatch >= plan.microbatches:
            reason = f"the plan has microbatches 0 to {plan.microbatches - 1}"
        elif (stage, kind, microbatch) in seen:
            reason = "runs twice"
        else:
            both = {Kind.BW: (Kind.B, Kind.W), Kind.B: (Kind.BW,), Kind.W: (Kind.BW,)}
            for other in both.get(kind, ()):
                if (stage, other, microbatch) in seen:
                    reason = f"repeats a part of {other}{microbatch}"
            before = {Kind.W: Kind.B, Kind.B: Kind.F, Kind.BW: Kind.F}.get(kind)
            if reason is None and before is not None and (stage, before, microbatch) not in seen:
                reason = f"runs before {before}{microbatch}"
        if reason is not None:
            return _fault(rank, index, instruction, reason)
        seen.add((stage, kind, microbatch))
    for stage, rank in enumerate(plan.placement):
        for microbatch in range(plan.microbatches):
            whole = (stage, Kind.BW, microbatch) in seen
            for kind in (Kind.F,) if whole else (Kind.F, Kind.B, Kind.W):
                if (stage, kind, microbatch) not in seen:
                    missing = Instruction(stage, kind, microbatch)
                    return _fault(rank, None, missing, f"is missing on rank {rank}")
    return None


def _deadlock(plan: PipelinePlan) -> Fault | None:
    blocked = dict(walk(plan, Scenario.uniform(plan.stages, plan.microbatches)).blocked(plan))
    if not blocked:
        return None
    at = {}
    for rank, index, instruction in plan.cells():
        if instruction.kind is not Kind.W:
            name = (instruction.stage, instruction.kind.backward, instruction.microbatch)
            at[name] = (rank, index)
    rank = min(blocked)
    path: list[tuple[int, tuple[int, int]]] = []
    while rank not in [each for each, _ in path]:
        waiting = plan.programs[rank][blocked[rank]]
        awaited = next(
            cell
            for cell in (at[name] for name in needs(waiting, plan.stages))
            if cell[1] >= blocked.get(cell[0], len(plan.programs[cell[0]]))
        )
        path.append((rank, awaited))
        rank = awaited[0]
    ring = path[[each for each, _ in path].index(rank) :]
    first = ring[0][0]
    links = []
    for _, (there, index) in ring:
        behind = plan.programs[there][blocked[there]]
        links.append(f"waits for {plan.programs[there][index]}, which stands behind {behind}")
    reason = ", which ".join(links) + ": no one can go on"
    return _fault(first, blocked[first], plan.programs[first][blocked[first]], reason)


def _memory(plan: PipelinePlan, scenario: Scenario) -> Fault | None:
    for rank in range(plan.ranks):
        limit = _limit(plan, scenario, rank)
        if limit is None:
            continue
        for index, held in enumerate(_held(plan, scenario, rank)):
            if held > limit:
                unit = _unit(plan, scenario, rank)
                need, cap = (float(unit.activations(amount)) for amount in (held, limit))
                reason = f"needs {need:g} activations, but the cap is {cap:g}"
                fault = _fault(rank, index, plan.programs[rank][index], reason)
                return replace(fault, over_cap=True)
    return None


def _fitting(plan: PipelinePlan, scenario: Scenario) -> str:
    """Return a sentence with the caps that a plan fits, and the schedules that fit its caps."""
    peaks = [
        float(_unit(plan, scenario, rank).activations(max(_held(plan, scenario, rank))))
        for rank in range(plan.ranks)
    ]
    shown = ", ".join(f"{peak:g}" for peak in peaks)
    where = "stages" if plan.ranks == plan.stages else "ranks"
    last = plan.ranks - 1
    holds = f"It holds up to {shown} activations on {where} 0 to {last}: such caps would fit"
    if not last:
        holds = f"It holds up to {shown} activations: such a cap would fit"
    return f"{holds}; the schedules auto and ready keep within any cap."


def _limit(plan: PipelinePlan, scenario: Scenario, rank: int) -> int | None:
    """Return the caps of a rank's stages together; None if a stage has none."""
    caps = [scenario.memory[stage].cap for stage in _stages(plan, rank)]
    limits = [cap for cap in caps if cap is not None]
    return sum(limits) if len(limits) == len(caps) else None


def _held(plan: PipelinePlan, scenario: Scenario, rank: int) -> list[int]:
    """Return the memory that a rank holds after the start of each of its instructions."""
    return list(
        accumulate(held_after(instruction, scenario) for instruction in plan.programs[rank])
    )


def _unit(plan: PipelinePlan, scenario: Scenario, rank: int) -> StageMemory:
    """Return the memory by whose activations a rank's memory is counted."""
    return scenario.memory[_stages(plan, rank)[0]]


def _stages(plan: PipelinePlan, rank: int) -> list[int]:
    return [stage for stage, place in enumerate(plan.placement) if place == rank]


def _fault(rank: int, index: int | None, instruction: Instruction, reason: str) -> Fault:
    return Fault(
        stage=instruction.stage,
        rank=rank,
        index=index,
        instruction=instruction.in_stage,
        reason=reason,
    )
