"""The plan of a pipeline, made from the schedule that the user chose and the stages' ranks."""

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
"""The activations that a stage may hold, for all stages or for each; None is no limit."""

_ANYWHERE = ("auto", "ready", "slack")
"""The schedules for which a readiness plan is made when several stages share a rank."""


def scenario_for(stages: int, microbatches: int, memory: Memory) -> Scenario:
    """Return the scenario before any measurement: equal stage times, no delays, `memory` as caps.

    Raises UsageError for a memory list of another length than `stages`.
    """
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
    """Return the validated plan for a schedule's name, or for a given plan.

    `placement` is the rank of each stage. Raises UsageError for an unknown schedule, and for a plan
    that does not fit the placement or the scenario.
    """
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
    """Return the scenario with a memory cap for each stage.

    A stage without a cap gets the peak of activations that the plan itself holds.
    """
    peaks = replay(plan, scenario).peak_activations
    return scenario.capped(
        [
            most if memory.cap is None else Fraction(memory.cap, memory.activation)
            for memory, most in zip(scenario.memory, peaks, strict=True)
        ]
    )


def forward_only(placement: Sequence[int], microbatches: int) -> PipelinePlan:
    """Return a pipeline plan that has forwards only, one microbatch after the other."""
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
    """Return a plan for any placement, made by simulating readiness with equal stage times.

    Readiness starts an instruction as soon as its inputs are there, B before F before W. Among
    equal instructions the one of the lower stage is first.
    """
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
