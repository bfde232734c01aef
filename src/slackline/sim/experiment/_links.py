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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, cast, get_args

from slackline._toml import Table, boolean, duration_ps, integer, listed, one_of, text
from slackline.errors import UsageError
from slackline.plan import pipeline
from slackline.sim._network import Network
from slackline.sim._pipeline import Run, simulate
from slackline.sim.experiment._case import Case, Figures, each_value

__all__ = ["iteration_cases", "job_cases"]

_TIMES = ("forward", "backward_input", "backward_weight")
_SENDS: Mapping[str, Mapping[str, Any]] = {
    "asynchronous": {},
    "blocking": {"serial": True, "head_of_line": True, "queue_depth": 0},
    "one-queue": {"serial": True, "head_of_line": True, "queue_depth": 0, "half_duplex": True},
}
"""The ways in which a runtime sends messages, as fields of a Network.

asynchronous: messages overlap on a link, and computations go on meanwhile.
blocking: a message occupies its direction of a link until it arrives, and the sender waits.
one-queue: blocking, and both directions of a link are one queue, as that of a communicator.
"""
_KNOWS = ("delays", "times", "nothing")
"""The part of the scenario that a schedule is made for: stage times and delays, stage times alone,
or neither."""
_MS = pipeline.PS_PER_MS
_REDRAWN_FOR_PS = 30_000 * _MS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runtime:
    """A pipeline runtime: its schedule, its knowledge of the pipeline, and its sends."""

    name: str
    schedule: str
    order: pipeline.Order
    knows: str
    sends: str
    full_backward: bool
    late_gradients: Mapping[int, tuple[int, ...]]
    """For each slow link, the links with equally late gradients; by default the link alone."""
    late_ps: int
    """The further delay of each message on a slow link."""
    rest_ps: int
    """The part of an iteration outside of the pipeline, such as the optimizer's step."""
    degraded_ps: int
    """The additional time of an iteration while a link is slow, and after a crash without a
    restart, such as the time of copies by helper processes."""
    restart_ps: int
    """The time that a crash costs; 0 for a runtime that survives a crash."""
    healthy: pipeline.Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class _Redrawn:
    """Delays that change at random, as steps of whole milliseconds."""

    most_ps: int
    step_ps: int
    shortest_ps: int
    longest_ps: int
    seed: int

    def changes(self, link: int) -> list[tuple[int, int]]:
        """Draw a link's delays for 30 s; return the (start, delay) of each, in picoseconds."""
        random = Random(1000 * self.seed + link)
        found, now_ps = [], 0
        while now_ps < _REDRAWN_FOR_PS:
            found.append(
                (now_ps, self.step_ps * random.randrange(self.most_ps // self.step_ps + 1))
            )
            choices = (self.longest_ps - self.shortest_ps) // _MS + 1
            now_ps += self.shortest_ps + _MS * random.randrange(choices)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Links:
    """Slow links: each has a constant delay, or all have delays that change at random."""

    delays_ps: tuple[tuple[int, int], ...] = ()
    """(link, delay in each direction)."""
    redrawn: tuple[tuple[int, _Redrawn], ...] = ()

    @property
    def slow(self) -> bool:
        """Whether a link has a delay at any time."""
        return bool(self.redrawn) or any(delay_ps for _, delay_ps in self.delays_ps)

    def expected(self, runtime: _Runtime) -> pipeline.Scenario:
        """Return the scenario of a runtime (a schedule's executor) with these delays.

        A random delay is replaced by its average.
        """
        means = ((link, each.most_ps // 2) for link, each in self.redrawn)
        found = runtime.healthy
        forward, backward = list(found.forward_delay_ps), list(found.backward_delay_ps)
        for link, delay_ps in (*self.delays_ps, *means):
            if delay_ps:
                forward[link] += delay_ps + runtime.late_ps
                for each in runtime.late_gradients.get(link, (link,)):
                    backward[each] += delay_ps + runtime.late_ps
        return replace(found, forward_delay_ps=tuple(forward), backward_delay_ps=tuple(backward))

    def network(self, runtime: _Runtime) -> Network:
        """Return the network with these delays, as they change over time."""
        found = Network.of(self.expected(runtime))
        for link, each in self.redrawn:
            usual_ps = runtime.healthy.forward_delay_ps[link]
            steps = [
                (at, usual_ps + (delay + runtime.late_ps if delay else 0))
                for at, delay in each.changes(link)
            ]
            found = found.changing(link, steps, "forward")
            for back in runtime.late_gradients.get(link, (link,)):
                found = found.changing(back, steps, "backward")
        return found


def iteration_cases(table: Table) -> list[Case]:
    """Return a case for each runtime and each delay of each network."""
    runtimes, stages = _pipeline(table)
    networks = [each for one in table.tables("network") for each in _networks(one, stages)]
    if not networks:
        raise table.wrong(UsageError("at least one [[iteration.network]] is needed"))

    def figures(runtime: _Runtime, links: _Links) -> Figures:
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
    runtimes, stages = _pipeline(table)
    iterations = table.take("iterations", integer)
    crash = table.take_if_there("crash", integer)
    if crash is not None and crash >= iterations:
        message = f"crash must be an iteration from 0 to {iterations - 1}, not {crash}"
        raise table.wrong(UsageError(message))
    phases: list[tuple[int, int, _Links]] = []
    for one in table.tables("phase"):
        first, lasts = one.take("from", integer), one.take("lasts", integer)
        ((_, links),) = _networks(one, stages, named=False)
        before = phases[-1][1] if phases else 0
        if first < before or first + lasts > iterations:
            message = (
                f"the phase of iterations {first} to {first + lasts} must be within {before} to "
                f"{iterations}, after the phase before it"
            )
            raise one.wrong(UsageError(message))
        phases += [(before, first, _Links()), (first, first + lasts, links)]
    slow = [(number, links) for number, (_, _, links) in enumerate(phases[1::2], 1)]
    phases.append((phases[-1][1] if phases else 0, iterations, _Links()))

    def figures(runtime: _Runtime) -> Figures:
        times = {
            links: _simulated(runtime, links).makespan_ps + _rest_ps(runtime, links)
            for links in dict.fromkeys(links for _, _, links in phases)
        }
        counted = [(last - first) * times[links] for first, last, links in phases]
        restart_ps = degraded_ps = 0
        if crash is not None and runtime.restart_ps:
            restart_ps = runtime.restart_ps
        elif crash is not None:
            healthy = sum(
                max(0, last - max(first, crash)) for first, last, each in phases if not each.slow
            )
            degraded_ps = healthy * runtime.degraded_ps
        return {
            "time_ps": sum(counted) + restart_ps + degraded_ps,
            "restart_ps": restart_ps,
            "healthy_ps": times[_Links()],
            "slowest_ps": max(times.values()),
            "phases_ps": counted,
            **{f"phase_{number}_iteration_ps": times[links] for number, links in slow},
        }

    return [Case(runtime.name, partial(figures, runtime)) for runtime in runtimes]


def _pipeline(table: Table) -> tuple[list[_Runtime], int]:
    """Return the runtimes that a table describes, and the pipeline's number of stages."""
    stages, microbatches = table.take("stages", integer), table.take("microbatches", integer)
    times = {key: each_value(table, key, stages, duration_ps) for key in _TIMES}
    latency_ps = table.take("latency", duration_ps, 0)
    names: set[str] = set()
    runtimes = []
    for one in table.tables("runtime"):
        runtime = _runtime(one, stages, microbatches, times, latency_ps)
        one.end()
        if runtime.name in names:
            raise one.wrong(UsageError(f'there are two runtimes of the name "{runtime.name}"'))
        names.add(runtime.name)
        runtimes.append(runtime)
    if not runtimes:
        raise table.wrong(UsageError("at least one runtime is needed: a table [[….runtime]]"))
    return runtimes, stages


def _runtime(
    table: Table,
    stages: int,
    microbatches: int,
    times: dict[str, tuple[int, ...]],
    latency_ps: int,
) -> _Runtime:
    own = {
        key: each_value(table, key, stages, duration_ps) if key in table else times[key]
        for key in _TIMES
    }
    cap = table.take_if_there("cap", integer)
    try:
        healthy = pipeline.Scenario(
            microbatches=microbatches,
            forward_ps=own["forward"],
            backward_input_ps=own["backward_input"],
            backward_weight_ps=own["backward_weight"],
            forward_delay_ps=(latency_ps,) * (stages - 1),
            backward_delay_ps=(latency_ps,) * (stages - 1),
            memory=(pipeline.StageMemory.of_microbatches(cap),) * stages,
        )
    except UsageError as error:
        raise table.wrong(error) from None
    found = _Runtime(
        name=table.take("name", text),
        schedule=table.take("schedule", one_of(*pipeline.names())),
        order=cast(pipeline.Order, table.take("order", one_of(*get_args(pipeline.Order)), "fixed")),
        knows=table.take("knows", one_of(*_KNOWS), "delays"),
        sends=table.take("sends", one_of(*_SENDS), "asynchronous"),
        full_backward=table.take("full_backward", boolean, False),
        late_gradients=_late_gradients(table.table("late_gradients"), stages),
        late_ps=table.take("late", duration_ps, 0),
        rest_ps=table.take("rest", duration_ps, 0),
        degraded_ps=table.take("degraded", duration_ps, 0),
        restart_ps=table.take("restart", duration_ps, 0),
        healthy=healthy,
    )
    try:
        _plan(found, healthy)
    except UsageError as error:
        raise table.wrong(error) from None
    return found


def _late_gradients(table: Table, stages: int) -> dict[int, tuple[int, ...]]:
    """Return, for each slow link, the links whose gradients have the slow link's delay."""
    found = {}
    for link in range(stages - 1):
        given = table.take_if_there(str(link), _integers)
        if given is None:
            continue
        for each in given:
            if each >= stages - 1:
                message = f"there is no link {each}: {stages} stages have {stages - 1} links"
                raise table.wrong(UsageError(message))
        found[link] = tuple(given)
    table.end()
    return found


def _integers(value: Any) -> list[int]:
    """Return the integers of an array, which may be empty."""
    if not isinstance(value, list):
        raise UsageError(f"must be an array of links, not {value!r}")
    return [integer(each) for each in value]


def _networks(table: Table, stages: int, *, named: bool = True) -> list[tuple[str, _Links]]:
    """Return the name and the network of each delay in a table."""
    name = table.take("name", text) if named else ""
    numbers = table.take("links", listed(integer))
    for link in numbers:
        if link >= stages - 1:
            message = f"links: there is no link {link}: {stages} stages have {stages - 1} links"
            raise table.wrong(UsageError(message))
    if len(set(numbers)) < len(numbers):
        raise table.wrong(UsageError(f"links must differ, not {numbers}"))
    found = []
    if "redrawn" in table:
        redrawn = _redrawn(table.table("redrawn"))
        found.append((name, _Links(redrawn=tuple((link, redrawn) for link in numbers))))
    else:
        for delay in table.take("delay", listed(_delay)):
            links = _Links(delays_ps=_each_link(table, numbers, delay))
            found.append((f"{name} {' '.join(shown for shown, _ in delay)}".strip(), links))
    table.end()
    if not named and len(found) != 1:
        raise table.wrong(UsageError(f"a phase must have one delay, not {len(found)}"))
    return found


def _delay(value: Any) -> list[tuple[str, int]]:
    """Return the text and the picoseconds of a delay, or of a list with one for each link."""
    return [(text(each), duration_ps(each)) for each in listed(text)(value)]


def _each_link(
    table: Table, numbers: Sequence[int], delay: Sequence[tuple[str, int]]
) -> tuple[tuple[int, int], ...]:
    if len(delay) not in (1, len(numbers)):
        message = f"delay must have one value or {len(numbers)} for the links, not {len(delay)}"
        raise table.wrong(UsageError(message))
    values = [delay_ps for _, delay_ps in delay] * (len(numbers) // len(delay))
    return tuple(zip(numbers, values, strict=True))


def _redrawn(table: Table) -> _Redrawn:
    found = _Redrawn(
        most_ps=table.take("most", duration_ps),
        step_ps=table.take("step", duration_ps),
        shortest_ps=table.take("shortest", duration_ps),
        longest_ps=table.take("longest", duration_ps),
        seed=table.take("seed", integer, 0),
    )
    table.end()
    if not found.step_ps:
        raise table.wrong(UsageError("step must be positive"))
    if not _MS <= found.shortest_ps <= found.longest_ps:
        raise table.wrong(UsageError("shortest must be at least 1ms, and at most longest"))
    return found


def _plan(runtime: _Runtime, expected: pipeline.Scenario) -> pipeline.PipelinePlan:
    healthy = runtime.healthy
    if runtime.knows == "times":
        expected = healthy
    elif runtime.knows == "nothing":
        equal = pipeline.Scenario.uniform(healthy.stages, healthy.microbatches)
        expected = replace(equal, memory=healthy.memory)
    options = pipeline.Options(full_backward=runtime.full_backward)
    return pipeline.generate(runtime.schedule, expected, options)


def _rest_ps(runtime: _Runtime, links: _Links) -> int:
    """Return the time of an iteration's parts outside of the pipeline, as the optimizer step."""
    return runtime.rest_ps + runtime.degraded_ps * links.slow


def _simulated(runtime: _Runtime, links: _Links) -> Run:
    expected = links.expected(runtime)
    return simulate(
        _plan(runtime, expected),
        expected,
        replace(links.network(runtime), **_SENDS[runtime.sends]),
        order=runtime.order,
    )
