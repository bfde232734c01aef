"""Iterations of a pipeline one after the other, while the delays of its links go on changing.

    iteration        0         1         2         3
    link        -----|----30ms-|---------|--12ms---|-----
    plan             made      (lag 1)   for 30 ms for 30 ms

A runtime that replans makes its plan before each iteration, for the delays at the start of the
iteration `lag` iterations before; in the first iterations it knows no delay.
"""

from slackline.plan import pipeline
from slackline.sim._network import Network
from slackline.sim._pipeline import Run, simulate
from slackline.sim.experiment._links import Delays, Links
from slackline.sim.experiment._runtime import Runtime, plan_of

__all__ = ["Series"]

_AHEAD_PS = 500 * pipeline.PS_PER_MS
"""The length of an iteration for which changes are computed first; a longer one is repeated."""


class Series:
    """The iterations of one runtime; equal iterations are simulated once."""

    def __init__(self, runtime: Runtime) -> None:
        """Begin at time 0, before the first iteration."""
        self._runtime = runtime
        self._iteration = 0
        self._now_ps = 0
        self._ahead_ps = _AHEAD_PS
        self._seen: list[Delays] = []
        self._plans: dict[pipeline.Scenario, pipeline.PipelinePlan] = {}
        self._runs: dict[tuple[Runtime, pipeline.Scenario, Network], Run] = {}
        self._steady: dict[tuple[Runtime, pipeline.Scenario, Links, bool], Run] = {}

    def next(self, links: Links, runs_as: Runtime | None = None) -> tuple[int, Run]:
        """Simulate an iteration on these links; return its time, and the run of the pipeline.

        `runs_as` is the runtime with other sends, for this iteration.
        """
        runtime = self._runtime if runs_as is None else runs_as
        self._seen.append(links.at(self._iteration, self._now_ps))
        expected = runtime.delayed(self._expected(links))
        if expected not in self._plans:
            self._plans[expected] = plan_of(runtime, expected)
        run = self._run(runtime, expected, links)
        time_ps = run.makespan_ps + runtime.rest_ps + runtime.degraded_ps * links.slow
        self._iteration += 1
        self._now_ps += time_ps
        return time_ps, run

    def _expected(self, links: Links) -> Delays:
        """Return the delays for which the plan of this iteration is made."""
        runtime = self._runtime
        if not runtime.replans:
            return links.usual()
        known = self._iteration - runtime.lag
        return self._seen[known] if known >= 0 else {}

    def _run(self, runtime: Runtime, expected: pipeline.Scenario, links: Links) -> Run:
        """Simulate this iteration, unless an equal one has been simulated."""
        of_links = runtime, expected, links, self._iteration < links.since
        if of_links in self._steady:
            return self._steady[of_links]
        plan = self._plans[expected]
        while True:
            network = links.network(runtime, self._iteration, self._now_ps, self._ahead_ps)
            known = runtime, expected, network
            if known not in self._runs:
                self._runs[known] = simulate(plan, expected, network, order=runtime.order)
            run = self._runs[known]
            if not links.changing or run.makespan_ps <= self._ahead_ps:
                break
            self._ahead_ps = 2 * run.makespan_ps
        if not links.changing and links.trace is None:
            self._steady[of_links] = run
        return run
