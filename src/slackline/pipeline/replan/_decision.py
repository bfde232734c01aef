"""The decision whether to make a new plan: a pure function of measurements and state.

A plan is made for given delays of the links. A new plan is made when a link's delay differs from
the planned delay by more than a margin:

- soon, if the delay is longer than the link's slack absorbs (the slack of a link is the number of
  forwards that its upper stage is ahead; see slackline.plan.pipeline);
- later, if the delay has become shorter, so that the plan holds needless activations;
- later, if the delay is longer than planned but within the slack.

A change must last for some steps, so that a short disturbance changes nothing. Each time is the
median of the latest three steps. For a link whose delay can be foretold, the forecast takes the
place of the measured delay, and a new plan is made at once.

Ranks that share cores with each other or with other programs take longer for all they do. So a
delay counts only beyond the time for which the ranks of the link waited for a core. The times of
the stages are compared by their shares in the time of a microbatch, and the time itself only where
a link has a delay whose length in computations then changes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from types import MappingProxyType

from slackline.plan.pipeline import Kind, PipelinePlan, Scenario, slack_needed, tolerance_ps
from slackline.units import show_time

__all__ = [
    "REMEMBERED",
    "Expected",
    "ReplanState",
    "StepMetrics",
    "Thresholds",
    "decide",
    "warm_up",
]

_PS_PER_NS = 1000
REMEMBERED = 3
"""The number of steps whose measurements are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The expected delay of a link in the steps that a new plan would be the first to serve."""

    delay_ns: int
    """The delay of each direction in nanoseconds."""
    reason: str
    """The reason to expect the delay, as a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """The times of a pipeline step by stage and by link, in nanoseconds, measured on all ranks."""

    step: int
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    weights: tuple[int, ...]
    down: tuple[int, ...]
    """The delay of activations from each stage to the next one."""
    up: tuple[int, ...]
    """The delay of gradients to each stage from the next one."""
    wall: int = 0
    """The time of the step on the rank on which it took longest."""
    core_wait: float = 0.0
    """The share of the step in which the computing threads waited for a core, averaged over the
    ranks."""
    core_waits: tuple[int, ...] = ()
    """The time for which the rank of each stage waited for a core, by computation of the rank.

    A thread that receives a message waits about as long. The tuple is empty where it is not known.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The least sizes and durations of changes for which a new plan is made."""

    worse: int = 2
    """The number of consecutive steps in which a link's delay must exceed its slack."""
    better: int = 5
    """The number of consecutive steps in which a delay within the slack differs from the plan."""
    margin: float = 0.1
    """The fraction of a planned delay, or of a stage's F and B, up to which a change is jitter."""
    times: float = 0.25
    """The fraction of the longest stage's time by which a stage's time must change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplanState:
    """The state, kept from step to step, of the decision whether to make a new pipeline plan."""

    planned: Scenario
    """The times, delays and memory that the plan was made for."""
    warm_up: tuple[int, ...]
    """The number of forwards of each stage before its first backward in the plan."""
    follows_times: bool
    """True if the plan depends on the stages' times as well as on the links' delays."""
    slack: bool = True
    """True if each rank has one stage, so that a plan's slack says what delay a link may have.

    Otherwise every delay above the planned one counts as longer than the plan absorbs.
    """
    measured_once: bool = False
    """True once a plan was made from measurements."""
    recent: tuple[StepMetrics, ...] = ()
    worse: int = 0
    better: int = 0
    other: int = 0

    def replanned(self, planned: Scenario, plan: PipelinePlan) -> "ReplanState":
        """Return the state, counters at zero, for a new `plan` made for the scenario `planned`."""
        return replace(
            self,
            planned=planned,
            warm_up=warm_up(plan),
            measured_once=True,
            worse=0,
            better=0,
            other=0,
        )

    def following(self, planned: Scenario, plan: PipelinePlan) -> "ReplanState":
        """Return the state without measurements, for a `plan` that the next measured step ran."""
        return replace(
            self, planned=planned, warm_up=warm_up(plan), recent=(), worse=0, better=0, other=0
        )


def warm_up(plan: PipelinePlan) -> tuple[int, ...]:
    """Return the number of forwards that a plan runs on each stage before its first backward."""
    found = [0] * plan.stages
    begun = [False] * plan.stages
    for _, _, instruction in plan.cells():
        if instruction.kind.backward:
            begun[instruction.stage] = True
        elif instruction.kind is Kind.F and not begun[instruction.stage]:
            found[instruction.stage] += 1
    return tuple(found)


_NO_FORECASTS: Mapping[int, Expected] = MappingProxyType({})


def decide(
    measured: StepMetrics,
    state: ReplanState,
    thresholds: Thresholds,
    expected: Mapping[int, Expected] = _NO_FORECASTS,
) -> tuple[ReplanState, Scenario | None, str]:
    """Decide whether to replan; return the new state, the scenario to plan for, and the reason.

    `expected` has the links whose delay is foretold. The scenario is None, and the reason empty, if
    the plan stays.
    """
    recent = (*state.recent, measured)[-REMEMBERED:]
    now = _scenario(state.planned, recent)
    for link, each in expected.items():
        now = now.delayed(link, each.delay_ns * _PS_PER_NS)
    others = [link for link in range(now.stages - 1) if link not in expected]
    slower, faster, longer = _links(now, state, thresholds, others)
    other = (_times(now, state, thresholds) or longer) if state.follows_times else ""
    state = replace(
        state,
        recent=recent,
        worse=state.worse + 1 if slower else 0,
        better=state.better + 1 if faster else 0,
        other=state.other + 1 if other else 0,
    )
    if state.worse >= thresholds.worse:
        return state, now, slower
    if foretold := _foretold(now, state, thresholds, expected):
        return state, now, foretold
    if not state.measured_once and state.follows_times and len(recent) == REMEMBERED:
        return state, now, f"the stages' times are known: {_shown(now)}"
    if state.better >= thresholds.better:
        return state, now, faster
    if state.other >= thresholds.better:
        return state, now, other
    return state, None, ""


def _scenario(planned: Scenario, recent: Sequence[StepMetrics]) -> Scenario:
    """Return the planned scenario, but with the median times and delays of recent steps."""

    def middle(name: str, least: int) -> tuple[int, ...]:
        rows = [getattr(each, name) for each in recent]
        columns = zip(*rows, strict=True)
        return tuple(max(least, round(median(column)) * _PS_PER_NS) for column in columns)

    return replace(
        planned,
        forward_ps=middle("forward", 1),
        backward_input_ps=middle("backward", 1),
        backward_weight_ps=middle("weights", 0),
        forward_delay_ps=_without_waits(recent, middle("down", 0)),
        backward_delay_ps=_without_waits(recent, middle("up", 0)),
    )


def _without_waits(recent: Sequence[StepMetrics], delays_ps: Sequence[int]) -> tuple[int, ...]:
    """Return delays of the links without the time for which their ranks waited for a core."""
    waits_ns = [each.core_waits for each in recent if each.core_waits]
    if not waits_ns:
        return tuple(delays_ps)
    waits_ps = [round(median(column)) * _PS_PER_NS for column in zip(*waits_ns, strict=True)]
    return tuple(
        max(0, delay - above - below)
        for delay, above, below in zip(delays_ps, waits_ps, waits_ps[1:], strict=False)
    )


def _foretold(
    now: Scenario, state: ReplanState, thresholds: Thresholds, expected: Mapping[int, Expected]
) -> str:
    """Return the reason to replan for a link whose delay is foretold; empty if there is none."""
    for link, each in expected.items():
        slower, faster, longer = _links(now, state, thresholds, (link,))
        if slower or faster or (longer and state.follows_times):
            return (
                f"link {link}-{link + 1} is expected to have {_ms(_delay(now, link))}; the plan "
                f"was made for {_ms(_delay(state.planned, link))}. {each.reason}"
            )
    return ""


def _links(
    now: Scenario, state: ReplanState, thresholds: Thresholds, links: Iterable[int]
) -> tuple[str, str, str]:
    """Compare the delays of `links` with the planned ones; return three reasons to replan.

    The first reason names a link whose delay exceeds its slack, the second a link that is faster
    than planned, the third a link that is slower than planned. A reason without a link is empty.
    """
    slower = faster = longer = ""
    most = 0
    for link in links:
        delay, planned = _delay(now, link), _delay(state.planned, link)
        if not state.measured_once:
            planned = 0
        below = now.forward_ps[link + 1] + now.backward_input_ps[link + 1]
        margin = thresholds.margin * max(planned, below)
        excess, absorbed = delay - planned, f"the plan was made for {_ms(planned)}"
        if state.slack:
            slack = max(0, state.warm_up[link] - state.warm_up[link + 1])
            absorbs = tolerance_ps(now, link, slack)
            excess = delay - absorbs
            absorbed = (
                f"which needs a slack of {slack_needed(now, link)}; the plan has {slack}, "
                f"which absorbs {_ms(max(absorbs, 0))}"
            )
        if delay > planned + margin and excess > most:
            most = excess
            separator = "," if state.slack else ";"
            slower = f"link {link}-{link + 1} has {_ms(delay)}{separator} {absorbed}"
        changed = f"link {link}-{link + 1} has {_ms(delay)}; the plan was made for {_ms(planned)}"
        if delay < planned - margin:
            faster = faster or changed
        if state.measured_once and delay > planned + margin:
            longer = longer or changed
    return slower, faster, longer


def _times(now: Scenario, state: ReplanState, thresholds: Thresholds) -> str:
    if not state.measured_once:
        return ""
    was, found = _whole(state.planned), _whole(now)
    speed = sum(found) / sum(was)
    if any(_delay(now, link) > thresholds.margin * found[link] for link in range(now.stages - 1)):
        speed = 1.0
    longest = max(was) * speed
    for stage, (before, after) in enumerate(zip(was, found, strict=True)):
        if abs(after - before * speed) > thresholds.times * longest:
            return (
                f"stage {stage} takes {_ms(after)} for a microbatch, all stages {_ms(sum(found))}; "
                f"the plan was made for {_ms(before)} and {_ms(sum(was))}"
            )
    return ""


def _whole(scenario: Scenario) -> list[int]:
    parts = (scenario.forward_ps, scenario.backward_input_ps, scenario.backward_weight_ps)
    return [sum(each) for each in zip(*parts, strict=True)]


def _delay(scenario: Scenario, link: int) -> int:
    return (scenario.forward_delay_ps[link] + scenario.backward_delay_ps[link]) // 2


def _shown(now: Scenario) -> str:
    stages = ", ".join(f"{stage}: {_ms(whole)}" for stage, whole in enumerate(_whole(now)))
    links = ", ".join(
        f"{link}-{link + 1}: {_ms(_delay(now, link))}" for link in range(now.stages - 1)
    )
    return f"a microbatch takes on stage {stages}; delays on link {links}"


def _ms(value_ps: float) -> str:
    return show_time(value_ps / _PS_PER_NS)
