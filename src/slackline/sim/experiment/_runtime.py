"""The runtimes of an experiment of one pipeline: schedules, orders, and ways to send messages."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, cast, get_args

from slackline._toml import Table, boolean, duration_ps, integer, listed, one_of, size, text
from slackline.errors import UsageError
from slackline.plan import pipeline
from slackline.sim._delegation import Delegation
from slackline.sim._network import SENDS
from slackline.sim.experiment._case import each_value
from slackline.sim.experiment._delegation import delegation_of, message_bytes_of

__all__ = ["Runtime", "plan_of", "runtimes_of"]

_TIMES = ("forward", "backward_input", "backward_weight")
_DELEGATED = "delegated"
"""The way to send in which helper processes carry the messages; the others are `SENDS`."""
_KNOWS = ("delays", "times", "nothing")
"""The part of the scenario that a schedule is made for: stage times and delays, stage times alone,
or neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A pipeline runtime: its schedule, its knowledge of the pipeline, and its sends."""

    name: str
    schedule: str
    order: pipeline.Order
    knows: str
    sends: str
    options: pipeline.Options
    placement: tuple[int, ...]
    """The rank of each stage."""
    late_gradients: Mapping[int, tuple[int, ...]] = field(hash=False)
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
    replans: bool
    """Whether the plan is made anew before each iteration."""
    lag: int
    """The number of iterations after which the runtime knows a delay."""
    healthy: pipeline.Scenario
    delegation: Delegation | None = None
    """The way of messages through the hosts' memory; None unless `sends` is "delegated"."""
    message_bytes: tuple[int, ...] = ()
    """The size of a message on each link between stages."""

    def delayed(self, delays_ps: Mapping[int, tuple[int, int]]) -> pipeline.Scenario:
        """Return the scenario with delays of links: (from rank i to i + 1, the way back).

        Raises UsageError for a link that the ranks do not have.
        """
        late_ps = self.late_ps
        both = {
            link: tuple(each + late_ps if each else 0 for each in delay)
            for link, delay in delays_ps.items()
        }
        found = self.healthy
        for link, (down_ps, up_ps) in both.items():
            if link not in self.late_gradients:
                way = {link: (down_ps, up_ps)}
                found = pipeline.delayed_links(found, self.placement, way)
                continue
            found = pipeline.delayed_links(found, self.placement, {link: (down_ps, 0)})
            for each in self.late_gradients[link]:
                found = pipeline.delayed_links(found, self.placement, {each: (0, up_ps)})
        return found


def runtimes_of(table: Table) -> list[Runtime]:
    """Return the runtimes that a table describes."""
    stages, microbatches = table.take("stages", integer), table.take("microbatches", integer)
    times = {key: each_value(table, key, stages, duration_ps) for key in _TIMES}
    latency_ps = table.take("latency", duration_ps, 0)
    freed = table.take("freed_at_backward", _share, Fraction(0))
    activation = table.take_if_there("activation_bytes", listed(size))
    messages = message_bytes_of(table, stages - 1)
    delegation = delegation_of(table.table("delegation"), stages)
    names: set[str] = set()
    runtimes = []
    for one in table.tables("runtime"):
        own = {
            key: each_value(one, key, stages, duration_ps) if key in one else times[key]
            for key in _TIMES
        }
        memory = _memory(one, stages, freed, activation)
        runtime = _runtime(one, microbatches, own, latency_ps, memory)
        one.end()
        if runtime.sends == _DELEGATED:
            runtime = replace(runtime, delegation=delegation, message_bytes=messages)
        if runtime.name in names:
            raise one.wrong(UsageError(f'there are two runtimes of the name "{runtime.name}"'))
        names.add(runtime.name)
        runtimes.append(runtime)
    if not runtimes:
        raise table.wrong(UsageError("at least one runtime is needed: a table [[….runtime]]"))
    return runtimes


def _runtime(
    table: Table,
    microbatches: int,
    times: dict[str, tuple[int, ...]],
    latency_ps: int,
    memory: tuple[pipeline.StageMemory, ...],
) -> Runtime:
    stages = len(memory)
    schedule = table.take("schedule", one_of(*pipeline.names()))
    again = table.take("recompute", _share, Fraction(0))
    options = pipeline.Options(
        full_backward=table.take("full_backward", boolean, False),
        stages_per_rank=table.take("stages_per_rank", integer, 2),
    )
    backward = tuple(
        back + int(again * forward)
        for back, forward in zip(times["backward_input"], times["forward"], strict=True)
    )
    try:
        healthy = pipeline.Scenario(
            microbatches=microbatches,
            forward_ps=times["forward"],
            backward_input_ps=backward,
            backward_weight_ps=times["backward_weight"],
            forward_delay_ps=(latency_ps,) * (stages - 1),
            backward_delay_ps=(latency_ps,) * (stages - 1),
            memory=memory,
        )
        placement = pipeline.placement_of(schedule, stages, options)
    except UsageError as error:
        raise table.wrong(error) from None
    found = Runtime(
        name=table.take("name", text),
        schedule=schedule,
        order=cast(pipeline.Order, table.take("order", one_of(*get_args(pipeline.Order)), "fixed")),
        knows=table.take("knows", one_of(*_KNOWS), "delays"),
        sends=table.take("sends", one_of(*SENDS, _DELEGATED), "asynchronous"),
        options=options,
        placement=placement,
        late_gradients=_late_gradients(table.table("late_gradients"), placement),
        late_ps=table.take("late", duration_ps, 0),
        rest_ps=table.take("rest", duration_ps, 0),
        degraded_ps=table.take("degraded", duration_ps, 0),
        restart_ps=table.take("restart", duration_ps, 0),
        replans=table.take("replans", boolean, False),
        lag=table.take("lag", integer, 0),
        healthy=healthy.placed(placement),
    )
    if found.replans and found.knows != "delays":
        message = f'replans needs knows = "delays", not "{found.knows}"'
        raise table.wrong(UsageError(message))
    if found.lag and not found.replans:
        message = f"lag = {found.lag} needs replans = true: other plans are made once"
        raise table.wrong(UsageError(message))
    try:
        plan_of(found, found.healthy)
    except UsageError as error:
        raise table.wrong(error) from None
    return found


def _memory(
    table: Table, stages: int, freed: Fraction, activation: list[int] | None
) -> tuple[pipeline.StageMemory, ...]:
    """Return the memory of each stage: a cap in activations, or in bytes with their size."""
    cap = table.take_if_there("cap", integer)
    if "memory_bytes" not in table:
        table.take_if_there("memory_bytes", size)
        try:
            return (pipeline.StageMemory.of_microbatches(cap, freed),) * stages
        except UsageError as error:
            raise table.wrong(error) from None
    limits = each_value(table, "memory_bytes", stages, size)
    if cap is not None:
        raise table.wrong(UsageError("cap and memory_bytes exclude each other: give one of them"))
    if activation is None:
        message = "memory_bytes needs activation_bytes, the size of an activation, above it"
        raise table.wrong(UsageError(message))
    if len(activation) not in (1, stages):
        message = f"activation_bytes must have one value or {stages}, not {len(activation)}"
        raise table.wrong(UsageError(message))
    sizes = activation * (stages // len(activation))
    try:
        return tuple(
            pipeline.StageMemory(activation=each, freed_at_backward=int(freed * each), cap=limit)
            for each, limit in zip(sizes, limits, strict=True)
        )
    except UsageError as error:
        raise table.wrong(error) from None


def _share(value: Any) -> Fraction:
    """Return a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UsageError(f"must be a number from 0 to 1, not {value!r}")
    return Fraction(str(value))


def _late_gradients(table: Table, placement: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    """Return, for each slow link, the links whose gradients have the slow link's delay."""
    ranks, links = max(placement) + 1, pipeline.link_count(placement)
    found = {}
    for link in range(links):
        given = table.take_if_there(str(link), _integers)
        if given is None:
            continue
        for each in given:
            if each >= links:
                have = "1 link" if links == 1 else f"{links} links"
                message = f"there is no link {each}: {ranks} ranks have {have}"
                raise table.wrong(UsageError(message))
        found[link] = tuple(given)
    table.end()
    return found


def _integers(value: Any) -> list[int]:
    """Return the integers of an array, which may be empty."""
    if not isinstance(value, list):
        raise UsageError(f"must be an array of links, not {value!r}")
    return [integer(each) for each in value]


def plan_of(runtime: Runtime, expected: pipeline.Scenario) -> pipeline.PipelinePlan:
    """Return the plan that a runtime makes, from the part of `expected` that it knows."""
    healthy = runtime.healthy
    if runtime.knows == "times":
        expected = healthy
    elif runtime.knows == "nothing":
        equal = pipeline.Scenario.uniform(healthy.stages, healthy.microbatches)
        expected = replace(equal, memory=healthy.memory)
    return pipeline.generate(runtime.schedule, expected, runtime.options)
