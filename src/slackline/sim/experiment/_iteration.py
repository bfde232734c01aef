"""Experiments of one pipeline on links with given delays: one iteration, or a job of iterations.

[iteration]                 each runtime is simulated on each network
stages = 4
microbatches = 12
forward = "10ms"            of each stage; backward_input and backward_weight too
latency = "700us"           of every message, besides the delay of a slow link

[[iteration.runtime]]
name = "zero bubble"
schedule = "zero-bubble"

[[iteration.network]]
name = "last link"
links = [2]
delay = ["0ms", "30ms"]     each way; one case for each
"""

from dataclasses import replace
from functools import partial

from slackline._toml import Table, integer
from slackline.errors import UsageError
from slackline.sim._pipeline import Run, simulate
from slackline.sim.experiment._case import Case, Figures
from slackline.sim.experiment._links import Links, networks_of
from slackline.sim.experiment._runtime import Runtime, plan_of, runtimes_of

__all__ = ["iteration_cases", "job_cases"]


def iteration_cases(table: Table) -> list[Case]:
    """Return a case for each runtime and each delay of each network."""
    runtimes, stages = runtimes_of(table)
    networks = [each for one in table.tables("network") for each in networks_of(one, stages)]
    if not networks:
        raise table.wrong(UsageError("at least one [[iteration.network]] is needed"))

    def figures(runtime: Runtime, links: Links) -> Figures:
        run = _simulated(runtime, links)
        return {
            "time_ps": run.makespan_ps + _rest_ps(runtime, links),
            "pipeline_ps": run.makespan_ps,
            "bubble_share": float(run.bubble_share),
            "most_activations": float(max(run.peak_activations)),
            "activations": [float(each) for each in run.peak_activations],
            "blocked_ps": run.blocked_ps,
        }

    return [
        Case(f"{runtime.name}, {name}", partial(figures, runtime, links))
        for runtime in runtimes
        for name, links in networks
    ]


def job_cases(table: Table) -> list[Case]:
    """Return a case for each runtime: a job of many iterations with slow phases and a crash."""
    runtimes, stages = runtimes_of(table)
    iterations = table.take("iterations", integer)
    crash = table.take_if_there("crash", integer)
    if crash is not None and crash >= iterations:
        message = f"crash must be an iteration from 0 to {iterations - 1}, not {crash}"
        raise table.wrong(UsageError(message))
    phases: list[tuple[int, int, Links]] = []
    for one in table.tables("phase"):
        first, lasts = one.take("from", integer), one.take("lasts", integer)
        ((_, links),) = networks_of(one, stages, named=False)
        before = phases[-1][1] if phases else 0
        if first < before or first + lasts > iterations:
            message = (
                f"the phase of iterations {first} to {first + lasts} must be within {before} to "
                f"{iterations}, after the phase before it"
            )
            raise one.wrong(UsageError(message))
        phases += [(before, first, Links()), (first, first + lasts, links)]
    slow = [(number, links) for number, (_, _, links) in enumerate(phases[1::2], 1)]
    phases.append((phases[-1][1] if phases else 0, iterations, Links()))

    def figures(runtime: Runtime) -> Figures:
        # Delegates carry messages while a link is slow, and all messages after a crash.
        usual = replace(runtime, sends="asynchronous", delegation=None)
        times = {
            links: _simulated(runtime if links.slow else usual, links).makespan_ps
            + _rest_ps(runtime, links)
            for links in dict.fromkeys(links for _, _, links in phases)
        }
        counted = [(last - first) * times[links] for first, last, links in phases]
        restart_ps = degraded_ps = further_ps = 0
        if crash is not None and runtime.restart_ps:
            restart_ps = runtime.restart_ps
        elif crash is not None:
            healthy = sum(
                max(0, last - max(first, crash)) for first, last, each in phases if not each.slow
            )
            further_ps = runtime.degraded_ps
            if runtime.delegation is not None:
                delegated_ps = _simulated(runtime, Links()).makespan_ps + runtime.rest_ps
                further_ps += delegated_ps - times[Links()]
            degraded_ps = healthy * further_ps
        return {
            "time_ps": sum(counted) + restart_ps + degraded_ps,
            "restart_ps": restart_ps,
            "healthy_ps": times[Links()],
            "after_crash_ps": times[Links()] + further_ps if crash is not None else None,
            "slowest_ps": max(times.values()),
            "phases_ps": counted,
            **{f"phase_{number}_iteration_ps": times[links] for number, links in slow},
        }

    return [Case(runtime.name, partial(figures, runtime)) for runtime in runtimes]


def _rest_ps(runtime: Runtime, links: Links) -> int:
    """Return the time of an iteration's parts outside of the pipeline, as the optimizer step."""
    return runtime.rest_ps + runtime.degraded_ps * links.slow


def _simulated(runtime: Runtime, links: Links) -> Run:
    expected = links.expected(runtime)
    return simulate(
        plan_of(runtime, expected),
        expected,
        links.network(runtime),
        order=runtime.order,
    )
