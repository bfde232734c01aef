"""From what the user asked for to a plan for the ranks that hold the stages."""

from collections.abc import Sequence
from fractions import Fraction

from slackline.errors import UsageError
from slackline.plan.pipeline import (
    SCHEDULES,
    Instruction,
    Kind,
    Options,
    PipelinePlan,
    Scenario,
    generate,
    one_each,
    replay,
    validate,
)
from slackline.sim import simulate

__all__ = ["Memory", "forward_only", "own_caps", "plan_for", "scenario_for"]

Memory = int | Fraction | Sequence[int | Fraction | None] | None
"""Activations that a stage may hold, the same for all or for each; None: no limit."""

_ANYWHERE = ("auto", "ready", "slack")
"""What readiness makes of them where several stages share a rank."""


def scenario_for(stages: int, microbatches: int, memory: Memory) -> Scenario:
    """Equal times, no delays: what is known before anything has been measured."""
    scenario = Scenario.uniform(stages, microbatches)
    if isinstance(memory, Sequence):
        if len(memory) != stages:
            raise UsageError(
                f"memory must have one value for each of the {stages} stages, not {len(memory)}"
            )
        return scenario.capped(memory)
    return scenario.capped([memory] * stages)


def plan_for(
    asked: str | PipelinePlan,
    placement: Sequence[int],
    scenario: Scenario,
    *,
    full_backward: bool,
    effort: float,
) -> PipelinePlan:
    """The plan, validated; raises UsageError that names what does not fit."""
    if isinstance(asked, PipelinePlan):
        plan = validate(asked, scenario)
    elif asked not in SCHEDULES:
        raise UsageError(f'there is no schedule "{asked}"; schedules are {", ".join(SCHEDULES)}')
    elif asked in _ANYWHERE and tuple(placement) != one_each(len(placement)):
        plan = validate(_ready_anywhere(placement, scenario), scenario)
    else:
        ranks = max(placement) + 1
        options = Options(
            full_backward=full_backward,
            effort=effort,
            stages_per_rank=max(1, len(placement) // ranks),
        )
        plan = generate(asked, scenario, options)
    for stage, (here, there) in enumerate(zip(placement, plan.placement, strict=True)):
        if here != there:
            raise UsageError(
                f"stage {stage} is on rank {here}, but {plan} wants it on rank {there}"
            )
    return plan


def own_caps(plan: PipelinePlan, scenario: Scenario) -> Scenario:
    """The scenario with what the plan itself holds as the caps where there are none."""
    peaks = replay(plan, scenario).peak_activations
    return scenario.capped(
        [
            most if memory.cap is None else Fraction(memory.cap, memory.activation)
            for memory, most in zip(scenario.memory, peaks, strict=True)
        ]
    )


def forward_only(placement: Sequence[int], microbatches: int) -> PipelinePlan:
    """The forwards alone, microbatch by microbatch."""
    return PipelinePlan(
        name="forward",
        microbatches=microbatches,
        placement=tuple(placement),
        programs=tuple(
            tuple(
                Instruction(stage, Kind.F, microbatch)
                for microbatch in range(microbatches)
                for stage, place in enumerate(placement)
                if place == rank
            )
            for rank in range(max(placement) + 1)
        ),
    )


def _ready_anywhere(placement: Sequence[int], scenario: Scenario) -> PipelinePlan:
    """Readiness in equal times, wherever the stages are; of equals the lower stage comes first."""
    all_there_is = PipelinePlan(
        name="ready",
        microbatches=scenario.microbatches,
        placement=tuple(placement),
        programs=tuple(
            tuple(
                Instruction(stage, kind, microbatch)
                for kind in (Kind.F, Kind.B, Kind.W)
                for microbatch in range(scenario.microbatches)
                for stage, place in enumerate(placement)
                if place == rank
            )
            for rank in range(max(placement) + 1)
        ),
    )
    run = simulate(all_there_is, scenario, order="ready")
    return PipelinePlan(
        name="ready",
        microbatches=scenario.microbatches,
        placement=tuple(placement),
        programs=tuple(tuple(span.instruction for span in spans) for spans in run.spans),
    )
