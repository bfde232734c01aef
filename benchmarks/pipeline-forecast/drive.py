"""The simulation of a training run over links whose delays change, with the real policy code.

Iterations follow each other without a pause. Decisions are those of `slackline.pipeline`; the
exchange of measurements and plans takes as many steps as the exchange of the runtime:

    step s - 2    is measured
    step s        begins: the measurements are known, a search for a plan may begin
    step t        ends, the search has ended before: the plan's size goes to all ranks
    step t + 3    begins with the new plan
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from random import Random
from statistics import median

from traces import NOISE_MS, NOISE_SEED, SECONDS, Trace

from slackline.pipeline import POLICIES
from slackline.pipeline.replan._decision import (
    ReplanState,
    StepMetrics,
    Thresholds,
    decide,
    warm_up,
)
from slackline.pipeline.replan.foresight import Foresight
from slackline.plan.pipeline import (
    PS_PER_MS,
    Kind,
    Options,
    PipelinePlan,
    Scenario,
    StageMemory,
    generate,
)
from slackline.sim import Network, Run, simulate

MODES = ("none", "react", "forecast", "oracle")
"""Contestants: no new plans, new plans after changes, with forecasts, and with all delays known."""
TIME_MS = 10
"""The duration of F, of B and of W on each stage."""
SEARCH_MS = {4: 100, 8: 1000}
"""The duration of a search for a plan of the schedule "auto", by the number of stages."""
EFFORT = {4: 0.25, 8: 0.1}
"""The effort of the simulated searches, by the number of stages."""
_AHEAD_MS = 20_000
"""The time for which changes of delays are known to one simulated iteration."""
_NS_PER_MS = 1_000_000
_ADOPTED_AFTER = 3
_KNOWN_AFTER = 2


@dataclass(slots=True)
class Outcome:
    """The result of a simulated training run."""

    iterations: int = 0
    total_ms: float = 0.0
    plans: int = 0
    """The number of new plans that were adopted."""
    reasons: list[str] = field(default_factory=list)
    forecast_s: float = 0.0
    """The processor time in seconds that the forecasts took."""
    news: list[str] = field(default_factory=list)
    """The changes of models, with their reasons."""

    @property
    def mean_ms(self) -> float:
        """The mean time of an iteration in ms."""
        return self.total_ms / self.iterations


@cache
def plan_of(schedule: str, scenario: Scenario) -> PipelinePlan:
    return generate(schedule, scenario, Options(effort=EFFORT[scenario.stages]))


@cache
def _steady(plan: PipelinePlan, planned: Scenario, actual: Scenario, order: str) -> Run:
    return simulate(plan, actual, order=order, expected=planned)  # type: ignore[arg-type]


class Training:
    """A simulated training run of one contestant on one trace."""

    def __init__(self, trace: Trace, policy: str, mode: str) -> None:
        self._trace, self._mode = trace, mode
        self._policy = POLICIES[policy]
        stages, each = trace.stages, TIME_MS * PS_PER_MS
        # Adaptra's rule knows no limit of memory.
        limit = 2 * stages if self._policy.replans == "auto" else None
        cap = StageMemory.of_microbatches(limit, 0)
        self._healthy = Scenario(
            microbatches=trace.microbatches,
            forward_ps=(each,) * stages,
            backward_input_ps=(each,) * stages,
            backward_weight_ps=(each,) * stages,
            forward_delay_ps=(0,) * (stages - 1),
            backward_delay_ps=(0,) * (stages - 1),
            memory=(cap,) * stages,
        )
        self._planned = self._healthy
        self._plan = plan_of(self._policy.replans, self._healthy)
        self._state = ReplanState(
            planned=self._healthy,
            warm_up=warm_up(self._plan),
            follows_times=self._policy.replans == "auto",
        )
        self._shortest_ms = 3 * trace.microbatches * TIME_MS
        """A time that is shorter than every iteration: the work of one stage."""
        self.outcome = Outcome()
        self._foresight = None
        if mode == "forecast":
            self._foresight = Foresight(
                stages - 1, lambda choice, why: self.outcome.news.append(f"{choice}: {why}")
            )
        self._noise = Random(NOISE_SEED)
        self._measured: deque[StepMetrics] = deque()
        self._ready_ms: float | None = None
        self._found: tuple[Scenario, str] | None = None
        self._adopt_at: int | None = None

    def run(self) -> Outcome:
        """Simulate all iterations and return the result."""
        found = self.outcome
        begin: Callable[[], None] = self._oracle if self._mode == "oracle" else self._begin
        while not self._ended():
            begin()
            took_ms, delays = self._iterate(self._plan, self._planned)
            begun_ms = found.total_ms
            found.total_ms += took_ms
            self._end(found.iterations, begun_ms, found.total_ms, delays)
            found.iterations += 1
        return found

    def _ended(self) -> bool:
        found, most = self.outcome, self._trace.iterations
        return found.total_ms >= SECONDS * 1000 if most is None else found.iterations >= most

    @property
    def _place(self) -> float:
        """The place in the trace, an iteration or a time in ms."""
        found = self.outcome
        return found.total_ms if self._trace.iterations is None else found.iterations

    def _scenario(self, delays_ms: tuple[int, ...]) -> Scenario:
        found = self._healthy
        for link, delay in enumerate(delays_ms):
            found = found.delayed(link, delay * PS_PER_MS)
        return found

    def _iterate(self, plan: PipelinePlan, planned: Scenario) -> tuple[float, list[float]]:
        """Simulate an iteration; return its time and the median delay of each link, in ms."""
        delays = self._trace.delays_ms(self._place)
        actual = self._scenario(delays)
        in_iterations = self._trace.iterations is not None
        if in_iterations or not self._changing(self._shortest_ms):
            run = _steady(plan, planned, actual, self._policy.order)
            took_ms = run.makespan_ps / PS_PER_MS
            if in_iterations or not self._changing(took_ms):
                return took_ms, [float(delay) for delay in delays]
        network, now = Network.of(actual), self._place
        for link in range(len(delays)):
            steps = self._trace.changes(link, now, now + _AHEAD_MS)
            changes = [(round((at - now) * PS_PER_MS), ms * PS_PER_MS) for at, ms in steps]
            network = network.changing(link, changes)
        run = simulate(plan, actual, network, order=self._policy.order, expected=planned)
        return run.makespan_ps / PS_PER_MS, _delays_ms(run, network)

    def _changing(self, within_ms: float) -> bool:
        now = self._place
        return any(self._trace.changes(link, now, now + within_ms) for link in self._trace.links)

    def _oracle(self) -> None:
        """Follow the fastest of the plans for the delays now, the longest soon, and for none."""
        now = self._trace.delays_ms(self._place)
        soon = list(now)
        if self._trace.iterations is None:
            for link in range(len(now)):
                steps = self._trace.changes(link, self._place, self._place + self._plan_ms(now))
                soon[link] = max([soon[link], *(delay for _, delay in steps)])
        best: tuple[float, PipelinePlan, Scenario] | None = None
        for delays in {now, tuple(soon), (0,) * len(now)}:
            scenario = self._scenario(delays)
            plan = plan_of(self._policy.replans, scenario)
            took_ms, _ = self._iterate(plan, scenario)
            if best is None or took_ms < best[0]:
                best = took_ms, plan, scenario
        assert best is not None
        self.outcome.plans += best[1] != self._plan
        _, self._plan, self._planned = best

    def _plan_ms(self, delays: tuple[int, ...]) -> float:
        scenario = self._scenario(delays)
        plan = plan_of(self._policy.replans, scenario)
        return _steady(plan, scenario, scenario, self._policy.order).makespan_ps / PS_PER_MS

    def _begin(self) -> None:
        """Adopt a plan that is due, and decide whether a plan is needed."""
        step, now_ms = self.outcome.iterations, self.outcome.total_ms
        if self._adopt_at == step:
            assert self._found is not None
            self._adopt(*self._found)
        if self._mode == "none" or len(self._measured) < _KNOWN_AFTER:
            return
        measured = self._measured.popleft()
        expected = {}
        if self._foresight is not None:
            begun_s = time.thread_time()
            expected = self._foresight.expected(measured, round(now_ms * _NS_PER_MS))
            self.outcome.forecast_s += time.thread_time() - begun_s
        self._state, scenario, reason = decide(measured, self._state, Thresholds(), expected)
        if scenario is None or self._found is not None:
            return
        if self._foresight is not None:
            self._foresight.requested(step)
        self._found = scenario, reason
        searches = self._policy.replans == "auto"
        self._ready_ms = now_ms + (SEARCH_MS[self._trace.stages] if searches else 0)

    def _adopt(self, scenario: Scenario, reason: str) -> None:
        """Follow the plan for a scenario, whose delays are rounded to whole milliseconds.

        The noise of a measurement would otherwise need a search of its own for each new plan.
        """
        delays = zip(scenario.forward_delay_ps, scenario.backward_delay_ps, strict=True)
        rounded = tuple(round((down + up) / 2 / PS_PER_MS) for down, up in delays)
        self._planned = self._scenario(rounded)
        plan = plan_of(self._policy.replans, self._planned)
        if plan != self._plan:
            self.outcome.plans += 1
            self.outcome.reasons.append(f"{self.outcome.total_ms / 1000:.1f} s: {reason}")
        self._plan = plan
        self._state = self._state.replanned(scenario, plan)
        self._found = self._adopt_at = self._ready_ms = None
        if self._foresight is not None:
            self._foresight.adopted(self.outcome.iterations)

    def _end(self, step: int, begun_ms: float, now_ms: float, delays_ms: list[float]) -> None:
        """Publish a step's measurements and the plan that has been found."""
        if step == 0:
            return
        stages = self._trace.stages
        noisy = [max(0.0, delay + self._noise.gauss(0, NOISE_MS)) for delay in delays_ms]
        found = tuple(round(delay * _NS_PER_MS) for delay in noisy)
        times = (TIME_MS * _NS_PER_MS,) * stages
        self._measured.append(
            StepMetrics(
                step=step, forward=times, backward=times, weights=times, down=found, up=found
            )
        )
        if self._foresight is not None:
            begin_ns, end_ns = round(begun_ms * _NS_PER_MS), round(now_ms * _NS_PER_MS)
            self._foresight.step_ended(step, begin_ns, end_ns)
        if self._ready_ms is not None and self._ready_ms <= now_ms and self._adopt_at is None:
            self._adopt_at = step + _ADOPTED_AFTER


def _delays_ms(run: Run, network: Network) -> list[float]:
    """Return the median delay of each link over the messages of an iteration, in ms."""
    found = []
    for link in range(len(network.forward)):
        each: list[int] = []
        for stage, kind, channel in (
            (link, Kind.F, network.forward[link]),
            (link + 1, Kind.B, network.backward[link]),
        ):
            last_ps = 0
            for spans in run.spans:
                for span in spans:
                    if span.instruction.stage == stage and span.instruction.kind is kind:
                        last_ps = max(last_ps, span.end_ps + channel.latency_at(span.end_ps))
                        each.append(last_ps - span.end_ps)
        found.append(median(each) / PS_PER_MS)
    return found
