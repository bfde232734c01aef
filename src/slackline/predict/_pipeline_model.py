"""Predicted step times of a pipeline under changes: steps simulated with random samples of
measured times.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from slackline.errors import UsageError
from slackline.faults import Effects, LinkFault, Plan, RankFault
from slackline.plan.pipeline import SCHEDULES, Options, Order, PipelinePlan, generate
from slackline.predict._changes import Change, Compute, FaultChange, Latency, Schedule
from slackline.predict._pipeline import Cap, PipelineRun, PipelineTimes, peaks_of
from slackline.sim import Run, simulate
from slackline.units import show_number, show_time

__all__ = ["PipelineOutcome", "PipelineSetting", "apply_to_pipeline", "simulate_pipeline"]

_PS_PER_NS = 1000
_FAR = 4
_ACCEPTED = "schedule, latency, compute, delays of links, and rank N slow"
_OWN_ORDERS: Mapping[str, Order] = {"auto": "planned", "adaptra": "fixed"}
"""The order of the simulator for schedules that have policies of their own."""
_UNBOUNDED = ("auto", "ready", "slack", "adaptra")
"""The schedules that use all permitted memory; plans of the others bound it themselves."""


@dataclass(frozen=True, kw_only=True)
class PipelineSetting:
    """The conditions under which a pipeline is simulated."""

    plan: PipelinePlan
    order: Order
    caps: tuple[Cap, ...]
    """The number of activations that each stage may hold."""
    computing: tuple[float, ...]
    """For each stage, the factor by which computations take longer than they were measured."""
    latency_ns: int | None = None
    """The delay of every message in place of the measured ones."""
    more_ns: tuple[tuple[int, int], ...]
    """For each link, the additional delays downwards and upwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOutcome:
    """The simulated steps of a pipeline."""

    step_ns: tuple[int, ...]
    """The duration of each step, sorted."""
    idle_share: float
    """The mean share of the ranks' time in which they computed nothing (the bubble)."""


def apply_to_pipeline(
    run: PipelineRun, changes: Sequence[Change]
) -> tuple[PipelineSetting, tuple[str, ...]]:
    """Return the conditions after the changes, and sentences about values far from measured ones.

    Raises UsageError for a change that the run cannot have.
    """
    stages = run.plan.stages
    ready = run.order == "ready"
    setting = PipelineSetting(
        plan=run.plan,
        order=run.order,
        caps=run.peaks if ready else (None,) * stages,
        computing=(1.0,) * stages,
        more_ns=((0, 0),) * (stages - 1),
    )
    warnings: list[str] = []
    # A plan is made for the delays and computations that the other changes leave.
    for change in sorted(changes, key=lambda each: isinstance(each, Schedule)):
        try:
            setting = _changed(run, setting, change, warnings)
        except UsageError as error:
            raise UsageError(
                f"{run.name} cannot have the change {str(change)!r}: {error}"
            ) from None
    return setting, tuple(warnings)


def _changed(
    run: PipelineRun, setting: PipelineSetting, change: Change, warnings: list[str]
) -> PipelineSetting:
    match change:
        case Compute():
            if max(change.factor, 1 / change.factor) > _FAR:
                warnings.append(f"computation changes by a factor of {show_number(change.factor)}")
            return replace(setting, computing=(change.factor,) * run.plan.stages)
        case Latency():
            low, high = sorted((change.one_way_ns, run.delay_ns))
            if high >= _FAR * max(1, low):
                warnings.append(
                    f"the latency is {show_time(change.one_way_ns)}, far from the measured delays"
                )
            return replace(setting, latency_ns=change.one_way_ns)
        case FaultChange():
            warnings.append("the run was measured without this fault")
            return _with_fault(run, setting, change)
        case Schedule():
            return _scheduled(run, setting, change)
    raise UsageError(f"a pipeline accepts {_ACCEPTED}")


def _with_fault(run: PipelineRun, setting: PipelineSetting, change: FaultChange) -> PipelineSetting:
    fault, plan = change.fault, run.plan
    Plan((fault,)).check(plan.ranks, 1)
    if fault.start_ns or fault.length_ns is not None:
        raise UsageError("a pipeline accepts faults that last all the time")
    match fault:
        case RankFault(action="slow"):
            factors = [
                factor * (fault.factor if rank == fault.rank else 1.0)
                for factor, rank in zip(setting.computing, plan.placement, strict=True)
            ]
            return replace(setting, computing=tuple(factors))
        case LinkFault() if fault.effects == Effects(delay_ns=fault.effects.delay_ns):
            delay_ns = fault.effects.delay_ns
            more = []
            for link, (down, up) in enumerate(setting.more_ns):
                ends = plan.placement[link], plan.placement[link + 1]
                forth = ends == (fault.source, fault.target)
                back = ends == (fault.target, fault.source)
                more.append(
                    (
                        down + delay_ns * (forth or (back and fault.both)),
                        up + delay_ns * (back or (forth and fault.both)),
                    )
                )
            return replace(setting, more_ns=tuple(more))
    raise UsageError(f"a pipeline accepts {_ACCEPTED}")


def _scheduled(run: PipelineRun, setting: PipelineSetting, change: Schedule) -> PipelineSetting:
    """Return the setting with a plan that the schedule makes for the median measured times."""
    several = run.plan.ranks != run.plan.stages and change.name not in ("auto", "ready")
    if several and SCHEDULES[change.name].one_stage_a_rank:
        raise UsageError(
            f"the schedule {change.name} has one stage on each rank, and the run has "
            f"{run.plan.stages} stages on {run.plan.ranks} ranks"
        )
    caps = run.caps if change.memory is None else (change.memory,) * run.plan.stages
    usual = sorted(run.steps, key=lambda step: step.wall_ns)[len(run.steps) // 2]
    scenario = run.scenario(changed_times(setting, usual), caps)
    options = Options(full_backward=run.full_backward, placement=run.plan.placement)
    plan = generate(change.name, scenario, options)
    if plan.placement != run.plan.placement:
        raise UsageError(
            f"the schedule {change.name} places stages on ranks otherwise than the run does"
        )
    order = _OWN_ORDERS.get(change.name, "ready")
    if run.policy == "fixed":  # No schedule has this policy of its own: the script asked for it.
        order = "fixed"
    if order == "ready" and change.name not in _UNBOUNDED:
        peaks = peaks_of(plan, run.scenario(usual, caps))
        caps = tuple(peak if cap is None else cap for cap, peak in zip(caps, peaks, strict=True))
    return replace(setting, plan=plan, order=order, caps=caps)


def changed_times(setting: PipelineSetting, times: PipelineTimes) -> PipelineTimes:
    """Return the times of a step under the setting's conditions."""

    def scaled(values: Sequence[int]) -> tuple[int, ...]:
        pairs = zip(values, setting.computing, strict=True)
        return tuple(round(value * factor) for value, factor in pairs)

    def delayed(values: Sequence[int], side: int) -> tuple[int, ...]:
        return tuple(
            (value if setting.latency_ns is None else setting.latency_ns) + more[side]
            for value, more in zip(values, setting.more_ns, strict=True)
        )

    return replace(
        times,
        forward_ns=scaled(times.forward_ns),
        input_ns=scaled(times.input_ns),
        weight_ns=scaled(times.weight_ns),
        down_ns=delayed(times.down_ns, 0),
        up_ns=delayed(times.up_ns, 1),
    )


def simulate_pipeline(
    run: PipelineRun, setting: PipelineSetting, *, samples: int, seed: int
) -> PipelineOutcome:
    """Simulate `samples` steps, each with the times of a measured step drawn with `seed`."""
    random = Random(seed)
    found: dict[PipelineTimes, Run] = {}
    steps, idle = [], 0.0
    for _ in range(samples):
        times = random.choice(run.steps)
        if times not in found:
            scenario = run.scenario(changed_times(setting, times), setting.caps)
            found[times] = simulate(setting.plan, scenario, order=setting.order)
        simulated = found[times]
        steps.append(times.rest_ns + simulated.makespan_ps // _PS_PER_NS)
        idle += float(simulated.bubble_share)
    return PipelineOutcome(step_ns=tuple(sorted(steps)), idle_share=idle / samples)
