"""The table of schedules: each row has the function that makes a schedule's plan."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from slackline.errors import UsageError
from slackline.plan.pipeline._plan import PipelinePlan, looped, one_each, vee
from slackline.plan.pipeline._scenario import Scenario
from slackline.plan.pipeline._validate import validate
from slackline.plan.pipeline.orders import (
    adaptra_plan,
    dual_pipe_v,
    gpipe,
    interleaved_1f1b,
    one_f_one_b,
    slack_plan,
    zb_h1,
    zb_h2,
    zb_v,
    zero_bubble,
)
from slackline.plan.pipeline.search import auto, ready_plan, shared_auto, shared_ready

__all__ = ["SCHEDULES", "Options", "Schedule", "generate", "names", "placement_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the schedules; a schedule ignores the options that it does not use."""

    full_backward: bool = False
    """Whether a backward is one instruction, for input and weights.

    The option is for the schedules gpipe, 1f1b, interleaved and dualpipe-v.
    """
    stages_per_rank: int = 2
    """The number of stages on each rank, for the schedule "interleaved"."""
    effort: float = 1.0
    """A factor on the search's budget, for the schedule "auto"."""
    stop: Callable[[], bool] | None = None
    """A function that returns True when the schedule "auto" must end its search."""
    placement: tuple[int, ...] = ()
    """The rank of each stage, for "auto" and "ready"; empty puts stage i on rank i."""

    def one_each(self, scenario: Scenario) -> bool:
        """Return whether stage i is on rank i; raise UsageError for a wrong number of ranks."""
        if self.placement and len(self.placement) != scenario.stages:
            raise UsageError(
                f"placement must have one rank for each of the {scenario.stages} stages, "
                f"not {len(self.placement)}"
            )
        return not self.placement or self.placement == one_each(scenario.stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A row of the table: the function that makes a schedule's plan, and a description."""

    make: Callable[[Scenario, Options], PipelinePlan]
    about: str
    one_stage_a_rank: bool = True


def _auto(scenario: Scenario, options: Options) -> PipelinePlan:
    if options.one_each(scenario):
        return auto(scenario, effort=options.effort, stop=options.stop).plan
    return shared_auto(scenario, options.placement, effort=options.effort, stop=options.stop)


SCHEDULES: Mapping[str, Schedule] = MappingProxyType(
    {
        "auto": Schedule(
            make=_auto,
            about="the shortest that is found under the caps",
        ),
        "ready": Schedule(
            make=lambda scenario, options: (
                ready_plan(scenario)
                if options.one_each(scenario)
                else shared_ready(scenario, options.placement)
            ),
            about="whatever is ready, B before F before W, within the caps",
        ),
        "slack": Schedule(
            make=lambda scenario, options: slack_plan(scenario),
            about="readiness with as many microbatches in flight as the delays ask for",
        ),
        "adaptra": Schedule(
            make=lambda scenario, options: adaptra_plan(scenario),
            about="Adaptra's plan as published; its adaptation knows no cap",
        ),
        "gpipe": Schedule(
            make=lambda scenario, options: gpipe(
                scenario.stages, scenario.microbatches, full_backward=options.full_backward
            ),
            about="all forwards, then all backwards",
        ),
        "1f1b": Schedule(
            make=lambda scenario, options: one_f_one_b(
                scenario.stages, scenario.microbatches, full_backward=options.full_backward
            ),
            about="one forward, one backward",
        ),
        "zb-h1": Schedule(
            make=lambda scenario, options: zb_h1(scenario.stages, scenario.microbatches),
            about="zero bubble with the memory of 1F1B",
        ),
        "zb-h2": Schedule(
            make=lambda scenario, options: zb_h2(scenario.stages, scenario.microbatches),
            about="zero bubble with twice the memory",
        ),
        "zero-bubble": Schedule(
            make=lambda scenario, options: zero_bubble(scenario.stages, scenario.microbatches),
            about="ZB-H2's warm-up, then B before F before W; knows neither delays nor caps",
        ),
        "interleaved": Schedule(
            make=lambda scenario, options: interleaved_1f1b(
                scenario.stages,
                scenario.microbatches,
                stages_per_rank=options.stages_per_rank,
                full_backward=options.full_backward,
            ),
            about="1F1B with several stages on each rank, dealt out round-robin",
            one_stage_a_rank=False,
        ),
        "zb-v": Schedule(
            make=lambda scenario, options: zb_v(scenario.stages, scenario.microbatches),
            about="zero bubble with two stages on each rank, in the shape of a V",
            one_stage_a_rank=False,
        ),
        "dualpipe-v": Schedule(
            make=lambda scenario, options: dual_pipe_v(
                scenario.stages, scenario.microbatches, full_backward=options.full_backward
            ),
            about="the V of zb-v; forwards of one stage alternate with backwards of the other",
            one_stage_a_rank=False,
        ),
    }
)
"""All schedules by name."""


def names() -> tuple[str, ...]:
    """Return the names of all schedules, in the order of the table."""
    return tuple(SCHEDULES)


def placement_of(name: str, stages: int, options: Options | None = None) -> tuple[int, ...]:
    """Return the rank of each stage by a schedule; raise UsageError as `generate` does."""
    options = options or Options()
    if name == "interleaved":
        return looped(stages, options.stages_per_rank)
    if name in ("zb-v", "dualpipe-v"):
        return vee(stages)
    if name in ("auto", "ready") and options.placement:
        return options.placement
    return one_each(stages)


def generate(name: str, scenario: Scenario, options: Options | None = None) -> PipelinePlan:
    """Generate the plan of the schedule for the scenario, and validate it.

    Raises UsageError that names the wrong value, or the stage and the operation for which the
    memory does not suffice.
    """
    schedule = SCHEDULES.get(name)
    if schedule is None:
        raise UsageError(f'there is no schedule "{name}"; schedules are {", ".join(SCHEDULES)}')
    return validate(schedule.make(scenario, options or Options()), scenario)
