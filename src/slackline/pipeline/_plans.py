"""The plan of a pipeline, made from the schedule that the user chose and the stages' ranks."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from fractions import Fraction

from slackline.errors import UsageError
from slackline.pipeline._config import ScheduleConfig
from slackline.plan.pipeline import (
    SCHEDULES,
    Instruction,
    Kind,
    Options,
    PipelinePlan,
    Scenario,
    generate,
    replay,
    validate,
)

__all__ = ["ANYWHERE", "Memory", "forward_only", "own_caps", "plan_for", "scenario_for"]

Memory = int | Fraction | Sequence[int | Fraction | None] | None
"""The most activations that a stage may hold: one number, or one for each stage; None: no limit."""

_PS_PER_US = 1_000_000
ANYWHERE = ("auto", "ready")
"""The schedules that have a plan for any placement of stages on ranks."""


def scenario_for(
    stages: int, microbatches: int, memory: Memory, config: ScheduleConfig
) -> Scenario:
    """Return the scenario for the first plan, before any measurement, with `memory` as caps.

    Times and delays are the expected values in `config`. Without expected values, stage times are
    equal and links have no delay. Raises UsageError for a list of a wrong length.
    """
    scenario = Scenario.uniform(stages, microbatches)
    if config.stage_times is not None:
        _check_length("stage_times", config.stage_times, stages, "stages")
        forward, backward, weights = (
            tuple(map(_picoseconds, column)) for column in zip(*config.stage_times, strict=True)
        )
        scenario = replace(
            scenario,
            forward_ps=forward,
            backward_input_ps=backward,
            backward_weight_ps=weights,
        )
    if config.link_delays is not None:
        _check_length("link_delays", config.link_delays, stages - 1, "links")
        delays = tuple(map(_picoseconds, config.link_delays))
        scenario = replace(scenario, forward_delay_ps=delays, backward_delay_ps=delays)
    if isinstance(memory, Sequence):
        _check_length("memory", memory, stages, "stages")
        return scenario.capped(memory)
    return scenario.capped([memory] * stages)


def _check_length(name: str, given: Sequence[object], count: int, what: str) -> None:
    if len(given) != count:
        raise UsageError(
            f"{name} must have one value for each of the {count} {what}, not {len(given)}"
        )


def _picoseconds(value: timedelta) -> int:
    return value // timedelta(microseconds=1) * _PS_PER_US


def plan_for(
    asked: str | PipelinePlan,
    placement: Sequence[int],
    scenario: Scenario,
    config: ScheduleConfig,
) -> PipelinePlan:
    """Return the validated plan for a schedule's name, or for a given plan.

    `placement` is the rank of each stage. Raises UsageError for an unknown schedule, and for a plan
    that does not fit the placement or the scenario.
    """
    if isinstance(asked, PipelinePlan):
        plan = validate(asked, scenario)
    elif asked not in SCHEDULES:
        raise UsageError(f'there is no schedule "{asked}"; schedules are {", ".join(SCHEDULES)}')
    else:
        ranks = max(placement) + 1
        options = Options(
            full_backward=config.full_backward,
            effort=config.plan_effort,
            stages_per_rank=max(1, len(placement) // ranks),
            placement=tuple(placement) if asked in ANYWHERE else (),
        )
        plan = generate(asked, scenario, options)
    for stage, (here, there) in enumerate(zip(placement, plan.placement, strict=True)):
        if here != there:
            raise UsageError(
                f"stage {stage} is on rank {here}, but {plan} places it on rank {there}"
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
