"""The times and the memory of a plan in which each rank keeps to its program.

An instruction starts when the previous instruction of its rank has ended and the message that it
needs has arrived:

    start(F s m) = max(end of previous instruction, end(F s-1 m) + forward delay of link s-1)
    start(B s m) = max(end of previous instruction, end(B s+1 m) + backward delay of link s)

Messages between stages of the same rank take no time.
"""

from collections import deque
from dataclasses import dataclass
from fractions import Fraction

from slackline.errors import UsageError
from slackline.plan.pipeline._instruction import Instruction, Kind
from slackline.plan.pipeline._plan import PipelinePlan
from slackline.plan.pipeline._scenario import Scenario

__all__ = [
    "Timing",
    "Walk",
    "duration_ps",
    "message_delay_ps",
    "needs",
    "planned_waits_ps",
    "replay",
    "walk",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The times of a plan; `start_ps[rank][index]` is for instruction `index` of the rank."""

    start_ps: tuple[tuple[int, ...], ...]
    end_ps: tuple[tuple[int, ...], ...]
    makespan_ps: int
    """The time from 0 to the end of the last instruction."""
    bubble_share: Fraction
    """The part of all ranks' time up to the makespan in which they compute nothing."""
    peak_activations: tuple[Fraction, ...]
    """The largest number of activations that each stage holds at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """The times of a plan up to its end or a deadlock, where each rank's list of times ends."""

    start_ps: tuple[tuple[int, ...], ...]
    end_ps: tuple[tuple[int, ...], ...]
    """For each rank, the end of each instruction that ran."""

    def blocked(self, plan: PipelinePlan) -> list[tuple[int, int]]:
        """Return the (rank, index) of each instruction that waits for ever, at most one a rank."""
        return [
            (rank, len(ends))
            for rank, ends in enumerate(self.end_ps)
            if len(ends) < len(plan.programs[rank])
        ]


def needs(instruction: Instruction, stages: int) -> list[tuple[int, bool, int]]:
    """Return the computations that the instruction depends on: (stage, is a backward, microbatch).

    A W depends on the backward for the input of its stage, which may be a B or a BW.
    """
    stage, microbatch = instruction.stage, instruction.microbatch
    if instruction.kind is Kind.F:
        return [(stage - 1, False, microbatch)] if stage else []
    if instruction.kind is Kind.W:
        return [(stage, True, microbatch)]
    below = [(stage + 1, True, microbatch)] if stage + 1 < stages else []
    return [(stage, False, microbatch), *below]


def duration_ps(instruction: Instruction, scenario: Scenario) -> int:
    """Return the computing time of the instruction in picoseconds."""
    stage = instruction.stage
    match instruction.kind:
        case Kind.F:
            return scenario.forward_ps[stage]
        case Kind.B:
            return scenario.backward_input_ps[stage]
        case Kind.W:
            return scenario.backward_weight_ps[stage]
    return scenario.backward_input_ps[stage] + scenario.backward_weight_ps[stage]


def message_delay_ps(sender: int, receiver: int, plan: PipelinePlan, scenario: Scenario) -> int:
    """Return the delay of a message from stage `sender` to stage `receiver`.

    The delay is 0 where both stages are on the same rank.
    """
    if plan.placement[sender] == plan.placement[receiver]:
        return 0
    if sender < receiver:
        return scenario.forward_delay_ps[sender]
    return scenario.backward_delay_ps[receiver]


def replay(plan: PipelinePlan, scenario: Scenario) -> Timing:
    """Compute the times and the memory of a plan; raise UsageError where an instruction deadlocks.

    The plan must be valid, except that it may exceed the memory caps.
    """
    result = walk(plan, scenario)
    if blocked := result.blocked(plan):
        rank, index = blocked[0]
        raise UsageError(f"{plan}: {plan.programs[rank][index]} waits for ever", rank=rank)
    makespan = max(ends[-1] for ends in result.end_ps if ends)
    busy = sum(duration_ps(instruction, scenario) for _, _, instruction in plan.cells())
    return Timing(
        start_ps=result.start_ps,
        end_ps=result.end_ps,
        makespan_ps=makespan,
        bubble_share=1 - Fraction(busy, makespan * plan.ranks),
        peak_activations=_peaks(plan, scenario),
    )


def planned_waits_ps(plan: PipelinePlan, scenario: Scenario) -> tuple[tuple[int, ...], ...]:
    """Return, for each rank, the planned idle time before each instruction of its program."""
    times = walk(plan, scenario)
    return tuple(
        tuple(start - end for start, end in zip(starts, (0, *ends), strict=False))
        for starts, ends in zip(times.start_ps, times.end_ps, strict=True)
    )


def walk(plan: PipelinePlan, scenario: Scenario) -> Walk:
    """Run the plan to its end or to a deadlock, in time proportional to its instructions."""
    if plan.stages != scenario.stages:
        raise UsageError(f"the plan has {plan.stages} stages, the scenario {scenario.stages}")
    done: dict[tuple[int, bool, int], int] = {}
    starts: list[list[int]] = [[] for _ in plan.programs]
    ends: list[list[int]] = [[] for _ in plan.programs]
    ready = deque(range(plan.ranks))
    waiting: dict[tuple[int, bool, int], list[int]] = {}
    while ready:
        rank = ready.popleft()
        program, mine = plan.programs[rank], ends[rank]
        while len(mine) < len(program):
            instruction = program[len(mine)]
            start = mine[-1] if mine else 0
            for needed in needs(instruction, plan.stages):
                end = done.get(needed)
                if end is None:
                    waiting.setdefault(needed, []).append(rank)
                    break
                delay = message_delay_ps(needed[0], instruction.stage, plan, scenario)
                start = max(start, end + delay)
            else:
                end = start + duration_ps(instruction, scenario)
                starts[rank].append(start)
                mine.append(end)
                if instruction.kind is not Kind.W:
                    name = (instruction.stage, instruction.kind.backward, instruction.microbatch)
                    done.setdefault(name, end)
                    ready.extend(waiting.pop(name, ()))
                continue
            break
    return Walk(start_ps=tuple(map(tuple, starts)), end_ps=tuple(map(tuple, ends)))


def held_after(instruction: Instruction, scenario: Scenario) -> int:
    """Return the change of the stage's activation memory by the instruction.

    An F takes memory at its start; the other instructions free memory at their end.
    """
    memory = scenario.memory[instruction.stage]
    match instruction.kind:
        case Kind.F:
            return memory.activation
        case Kind.B:
            return -memory.freed_at_backward
        case Kind.W:
            return memory.freed_at_backward - memory.activation
    return -memory.activation


def _peaks(plan: PipelinePlan, scenario: Scenario) -> tuple[Fraction, ...]:
    held, peak = [0] * plan.stages, [0] * plan.stages
    for _, _, instruction in plan.cells():
        stage = instruction.stage
        held[stage] += held_after(instruction, scenario)
        peak[stage] = max(peak[stage], held[stage])
    return tuple(
        memory.activations(most) for memory, most in zip(scenario.memory, peak, strict=True)
    )
