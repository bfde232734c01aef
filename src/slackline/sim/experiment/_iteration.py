"""Experiments of one pipeline on links with given delays: iterations, or a job of iterations.

[iteration]                 each runtime is simulated on each network
stages = 4
microbatches = 12
forward = "10ms"            of each stage; backward_input and backward_weight too
latency = "700us"           of every message, besides the delay of a slow link
iterations = 8              one after the other, while delays go on changing; 1 by default

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

from slackline._toml import Table, integer, text
from slackline.errors import UsageError
from slackline.sim.experiment._case import Case, Figures, Setting
from slackline.sim.experiment._delays import Trace, trace_of
from slackline.sim.experiment._links import Links, networks_of
from slackline.sim.experiment._runtime import Runtime, runtimes_of
from slackline.sim.experiment._series import Series

__all__ = ["iteration_cases", "job_cases"]


def iteration_cases(table: Table, setting: Setting) -> list[Case]:
    """Return a case for each runtime and each delay of each network."""
    runtimes = runtimes_of(table)
    count, warmup = table.take("iterations", integer, 1), table.take("warmup", integer, 0)
    if not warmup < count:
        raise table.wrong(UsageError(f"warmup must be below iterations, {count}, not {warmup}"))
    networks = [
        each for one in table.tables("network") for each in networks_of(one, runtimes, setting)
    ]
    if not networks:
        raise table.wrong(UsageError("at least one [[iteration.network]] is needed"))

    def figures(runtime: Runtime, links: Links) -> Figures:
        series = Series(runtime)
        found = [series.next(links) for _ in range(count)][warmup:]
        runs = [run for _, run in found]
        times = [time_ps for time_ps, _ in found]
        most = max(runs, key=lambda run: max(run.peak_activations))
        longest = max(runs, key=lambda run: max(run.blocked_ps))
        return {
            "time_ps": sum(times) // len(times),
            "iterations_ps": times,
            "pipeline_ps": sum(run.makespan_ps for run in runs) // len(runs),
            "bubble_share": float(sum(run.bubble_share for run in runs) / len(runs)),
            "most_activations": float(max(most.peak_activations)),
            "activations": [float(each) for each in most.peak_activations],
            "blocked_ps": longest.blocked_ps,
        }

    return [
        Case(f"{runtime.name}, {name}", partial(figures, runtime, links))
        for runtime in runtimes
        for name, links in networks
    ]


Phase = tuple[int, int, Links]
"""The first iteration of a phase, the iteration after its last one, and its links."""


def job_cases(table: Table, setting: Setting) -> list[Case]:
    """Return a case for each runtime: a job of many iterations with slow phases and a crash."""
    runtimes = runtimes_of(table)
    iterations = table.take("iterations", integer)
    crash = table.take_if_there("crash", integer)
    if "trace" in table:
        name = table.take("trace", text)
        trace = trace_of(setting.text_of(name), name)
        if crash is not None or "phase" in table:
            raise table.wrong(UsageError(f"{name} has the phases and the crash: give no others"))
        if not trace.by_iteration:
            raise table.wrong(UsageError(f"the times of {name} must be iterations, not seconds"))
        crash = trace.crash
        slow = _traced(trace, iterations)
    else:
        slow = _slow_phases(table, runtimes, iterations, setting)
    if crash is not None and crash >= iterations:
        message = f"crash must be an iteration from 0 to {iterations - 1}, not {crash}"
        raise table.wrong(UsageError(message))
    ends = [0, *(last for _, last, _ in slow)]
    starts = [*(first for first, _, _ in slow), iterations]
    usual = [(last, first, Links()) for last, first in zip(ends, starts, strict=True)]
    phases = sorted([*usual, *slow], key=lambda phase: phase[:2])
    return [
        Case(runtime.name, partial(_job_figures, runtime, phases, slow, crash))
        for runtime in runtimes
    ]


def _slow_phases(
    table: Table, runtimes: list[Runtime], iterations: int, setting: Setting
) -> list[Phase]:
    found: list[Phase] = []
    for one in table.tables("phase"):
        first, lasts = one.take("from", integer), one.take("lasts", integer)
        ((_, links),) = networks_of(one, runtimes, setting, named=False)
        before = found[-1][1] if found else 0
        if first < before or first + lasts > iterations:
            message = (
                f"the phase of iterations {first} to {first + lasts} must be within {before} to "
                f"{iterations}, after the phase before it"
            )
            raise one.wrong(UsageError(message))
        found.append((first, first + lasts, links))
    return found


def _traced(trace: Trace, iterations: int) -> list[Phase]:
    """Return the phases of a trace in which a link is slow, up to a number of iterations."""
    found = []
    starts = [time for time, _ in trace.lines]
    for (first, delays), last in zip(trace.lines, [*starts[1:], iterations], strict=True):
        slow = tuple((link, (delay, delay)) for link, delay in delays if delay)
        if slow and first < iterations:
            found.append((first, min(last, iterations), Links(delays_ps=slow)))
    return found


def _job_figures(
    runtime: Runtime, phases: list[Phase], slow: list[Phase], crash: int | None
) -> Figures:
    survives = crash is not None and not runtime.restart_ps
    # Delegates carry messages while a link is slow, and all messages after a crash.
    usual = replace(runtime, sends="asynchronous", delegation=None)
    series = Series(runtime)
    times: list[int] = []
    counted = []
    degraded_ps = 0
    for first, last, links in phases:
        spent_ps = 0
        for iteration in range(first, last):
            failed = survives and crash is not None and iteration >= crash
            runs_as = runtime if links.slow or failed else usual
            time_ps, _ = series.next(links, runs_as)
            if failed and not links.slow:
                degraded_ps += runtime.degraded_ps
            spent_ps += time_ps
            times.append(time_ps)
        counted.append(spent_ps)
    alone = Series(runtime)
    healthy_ps = Series(usual).next(Links())[0]
    restart_ps = runtime.restart_ps if crash is not None else 0
    after_ps = alone.next(Links())[0] + runtime.degraded_ps if survives else None
    figures: Figures = {
        "time_ps": sum(counted) + restart_ps + degraded_ps,
        "restart_ps": restart_ps,
        "healthy_ps": healthy_ps,
        "after_crash_ps": after_ps,
        "slowest_ps": max(times, default=healthy_ps),
        "phases_ps": counted,
    }
    for number, (first, last, _) in enumerate(slow, 1):
        figures[f"phase_{number}_iteration_ps"] = sum(times[first:last]) // max(1, last - first)
    return figures
