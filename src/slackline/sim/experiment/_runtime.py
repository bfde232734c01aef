"""The runtimes of an experiment of one pipeline: schedules, orders, and ways to send messages."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

from slackline._toml import Table, boolean, duration_ps, integer, one_of, text
from slackline.errors import UsageError
from slackline.plan import pipeline
from slackline.sim._delegation import Delegation
from slackline.sim.experiment._case import each_value
from slackline.sim.experiment._delegation import delegation_of, message_bytes_of

__all__ = ["SENDS", "Runtime", "plan_of", "runtimes_of"]

_TIMES = ("forward", "backward_input", "backward_weight")
SENDS: Mapping[str, Mapping[str, Any]] = {
    "asynchronous": {},
    "blocking": {"serial": True, "head_of_line": True, "queue_depth": 0},
    "one-queue": {"serial": True, "head_of_line": True, "queue_depth": 0, "half_duplex": True},
    "delegated": {},
}
"""The ways in which a runtime sends messages, as fields of a Network.

asynchronous: messages overlap on a link, and computations go on meanwhile.
blocking: a message occupies its direction of a link until it arrives, and the sender waits.
one-queue: blocking, and both directions of a link are one queue, as that of a communicator.
delegated: helper processes carry the messages through the memory of the hosts.
"""
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
    delegation: Delegation | None = None
    """The way of messages through the hosts' memory; None unless `sends` is "delegated"."""
    message_bytes: tuple[int, ...] = ()
    """The size of a message on each link."""


def runtimes_of(table: Table) -> tuple[list[Runtime], int]:
    """Return the runtimes that a table describes, and the pipeline's number of stages."""
    stages, microbatches = table.take("stages", integer), table.take("microbatches", integer)
    times = {key: each_value(table, key, stages, duration_ps) for key in _TIMES}
    latency_ps = table.take("latency", duration_ps, 0)
    messages = message_bytes_of(table, stages - 1)
    delegation = delegation_of(table.table("delegation"), stages)
    names: set[str] = set()
    runtimes = []
    for one in table.tables("runtime"):
        runtime = _runtime(one, stages, microbatches, times, latency_ps)
        one.end()
        if runtime.sends == "delegated":
            runtime = replace(runtime, delegation=delegation, message_bytes=messages)
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
) -> Runtime:
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
    found = Runtime(
        name=table.take("name", text),
        schedule=table.take("schedule", one_of(*pipeline.names())),
        order=cast(pipeline.Order, table.take("order", one_of(*get_args(pipeline.Order)), "fixed")),
        knows=table.take("knows", one_of(*_KNOWS), "delays"),
        sends=table.take("sends", one_of(*SENDS), "asynchronous"),
        full_backward=table.take("full_backward", boolean, False),
        late_gradients=_late_gradients(table.table("late_gradients"), stages),
        late_ps=table.take("late", duration_ps, 0),
        rest_ps=table.take("rest", duration_ps, 0),
        degraded_ps=table.take("degraded", duration_ps, 0),
        restart_ps=table.take("restart", duration_ps, 0),
        healthy=healthy,
    )
    try:
        plan_of(found, healthy)
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


def plan_of(runtime: Runtime, expected: pipeline.Scenario) -> pipeline.PipelinePlan:
    healthy = runtime.healthy
    if runtime.knows == "times":
        expected = healthy
    elif runtime.knows == "nothing":
        equal = pipeline.Scenario.uniform(healthy.stages, healthy.microbatches)
        expected = replace(equal, memory=healthy.memory)
    options = pipeline.Options(full_backward=runtime.full_backward)
    return pipeline.generate(runtime.schedule, expected, options)
