"""The cases of an experiment: the reader of each kind of table, and the simulation's figures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, cast, get_args

from slackline._toml import Table, boolean, duration_ps, integer, listed, one_of, size, text
from slackline.errors import UsageError
from slackline.faults import Plan
from slackline.plan import pipeline
from slackline.plan.collective import (
    TREE,
    Collective,
    CollectivePlan,
    even_runs,
    generate,
    hierarchical,
    tree_plan,
)
from slackline.sim._alike import check_alike, simulate_alike
from slackline.sim._bound import lower_bound
from slackline.sim._collective import simulate_collective
from slackline.sim._fabric import Fabric
from slackline.sim._flows import FlowRun, check_flows, simulate_flows
from slackline.sim._hybrid import simulate_hybrid
from slackline.sim._operation import Operation
from slackline.sim._training import Layer, Policy, simulate_training
from slackline.sim.experiment._case import Case, Figures, Setting, each_value
from slackline.sim.experiment._iteration import iteration_cases, job_cases
from slackline.sim.experiment._node import node_cases

__all__ = ["ALONE", "KINDS"]


@dataclass(frozen=True, slots=True)
class _Ranks:
    """The hosts of the ranks and of an aggregator."""

    hosts: tuple[int, ...]
    aggregator: int | None
    per_host: int
    placed: bool
    """Whether the file says which hosts the ranks or an aggregator are on."""

    def hierarchical(self) -> CollectivePlan:
        """Return the hierarchical plan; UsageError where the hosts do not have equal ranks."""
        hosts, per_host = self.hosts, self.per_host
        alike = [hosts[first : first + per_host] for first in range(0, len(hosts), per_host)]
        if any(len(block) != per_host or len(set(block)) > 1 for block in alike):
            raise UsageError(
                f"hierarchical needs {per_host} ranks on each host, not {list(self.hosts)}"
            )
        return hierarchical(len(alike), per_host)

    def placement(self, helpers: int) -> tuple[int, ...]:
        """Return the host of each member of a plan; raise UsageError if the aggregator has none."""
        if helpers and self.aggregator is None:
            raise UsageError('the plan "star" needs an aggregator_host')
        return (*self.hosts, *((self.aggregator or 0,) * helpers))


def _ranks(table: Table, fabric: Fabric) -> _Ranks:
    placed = "rank_hosts" in table or "aggregator_host" in table
    aggregator = table.take_if_there("aggregator_host", integer)
    per_host = table.take("ranks_per_host", integer, 1)
    every = [
        host for host in range(len(fabric.hosts)) if host != aggregator for _ in range(per_host)
    ]
    hosts = tuple(table.take("rank_hosts", listed(integer), every))
    if not hosts:
        message = f"there are no ranks: ranks_per_host is {per_host}, aggregator_host {aggregator}"
        raise table.wrong(UsageError(message))
    for host in (*hosts, aggregator or 0):
        if host >= len(fabric.hosts):
            message = f"there is no host {host}: there are {len(fabric.hosts)}"
            raise table.wrong(UsageError(message))
    return _Ranks(hosts, aggregator, per_host, placed)


def _operation(
    table: Table,
    ranks: int,
    hierarchy: Callable[[], CollectivePlan] | None = None,
    *,
    lazily: bool = False,
) -> tuple[Callable[[str, int], Operation], Sequence[str]]:
    """Return a function (plan's name, bytes) -> operation, and the names of the plans.

    With `lazily` a plan's programs are made whenever they are asked for.
    """
    labels = {each.label: each for each in Collective}
    collective = labels[table.take("name", one_of(*labels), Collective.ALL_REDUCE.label)]
    names = table.take("plan", listed(text))
    root = table.take_if_there("root", integer)
    itemsize = table.take("itemsize", integer, 4)
    segment = table.take_if_there("segment", size)
    onset = table.take("onset", integer, 1)
    leaves = table.take_if_there("virtual_ranks", integer)

    def in_tree() -> CollectivePlan:
        if leaves is None:
            raise UsageError('the plan "tree" needs virtual_ranks')
        if collective is not Collective.ALL_REDUCE:
            raise UsageError(f'the plan "tree" is one of all_reduce, not of {collective.label}')
        return tree_plan(even_runs(leaves, ranks))

    def make(name: str, nbytes: int) -> Operation:
        if name == "hierarchical" and hierarchy is not None:
            plan = hierarchy()
        elif name == TREE:
            plan = in_tree()
        else:
            plan = generate(collective, name, ranks, root, lazily=lazily)
        if nbytes % max(1, itemsize):
            raise UsageError(f"{nbytes} bytes are not a whole number of elements of {itemsize}")
        return Operation(
            plan=plan,
            count=nbytes // max(1, itemsize),
            itemsize=itemsize,
            segment_bytes=segment,
            onset=onset,
        )

    for name in names:
        try:
            make(name, 0)
        except UsageError as error:
            raise table.wrong(error) from None
    return make, names


def _collective(table: Table, fabric: Fabric, faults: Plan, _computing: float) -> list[Case]:
    ranks = _ranks(table, fabric)
    alike, flows = (table.take(key, boolean, False) for key in ("alike", "flows"))
    make, names = _operation(table, len(ranks.hosts), ranks.hierarchical, lazily=alike or flows)
    nbytes = table.take("size", size)
    if alike and flows:
        raise table.wrong(UsageError("alike and flows exclude each other: give one of them"))
    if alike and (faults or len(set(fabric.hosts)) > 1 or ranks.placed):
        message = "alike needs equal hosts, and neither faults, rank_hosts nor aggregator_host"
        raise table.wrong(UsageError(message))
    if flows and (faults or ranks.placed):
        message = "flows allow neither faults, rank_hosts nor aggregator_host"
        raise table.wrong(UsageError(message))

    def simulate(operation: Operation, placement: tuple[int, ...]) -> Figures:
        if flows:
            return _of_flows(simulate_flows(operation, fabric, ranks_per_host=ranks.per_host))
        if alike:
            one = replace(fabric, hosts=fabric.hosts[:1])
            run = simulate_alike(operation, one, ranks_per_host=ranks.per_host)
        else:
            run = simulate_collective(operation, fabric, placement=placement, faults=faults)
        return {
            "time_ps": run.duration_ps,
            "bound_ps": None if alike else lower_bound(operation, fabric, placement).time_ps,
            "ended_ps": run.ended_ps,
            "sent_bytes": run.sent_bytes,
            "frames": run.messages,
            "resent_packets": run.resent_packets,
            "events": run.events,
        }

    cases = []
    for name in names:
        try:
            operation = make(name, nbytes)
            placement = ranks.placement(operation.plan.helpers)
            if alike:
                check_alike(operation, ranks.per_host)
            if flows:
                check_flows(operation, ranks.per_host)
        except UsageError as error:
            raise table.wrong(error) from None
        cases.append(Case(name, partial(simulate, operation, placement)))
    return cases


def _of_flows(run: FlowRun) -> Figures:
    return {
        "time_ps": run.duration_ps,
        "bound_ps": None,
        "ended_ps": run.ended_ps,
        "sent_bytes": run.sent_bytes,
        "frames": None,
        "flows": run.flows,
        "resent_packets": 0,
        "events": run.flows,
    }


def _training(table: Table, fabric: Fabric, faults: Plan, computing: float) -> list[Case]:
    ranks = _ranks(table, fabric)
    make, names = _operation(table, len(ranks.hosts), ranks.hierarchical)
    policies = table.take("policy", listed(one_of(*get_args(Policy))), ["overlap"])
    groups = table.take("group", listed(_size), [("0B", 0)])
    steps = table.take("steps", integer, 3)
    launch_ps = table.take("launch", duration_ps, 0)
    samples = table.take_if_there("samples", listed(integer)) or []
    layers = _layers(table, computing)
    try:
        placements = {name: ranks.placement(make(name, 0).plan.helpers) for name in names}
        for layer in layers:
            make(names[0], layer.gradient_bytes)
    except UsageError as error:
        raise table.wrong(error) from None
    if steps < 2:
        raise table.wrong(UsageError(f"steps must be at least 2, not {steps}"))

    def simulate(name: str, policy: str, group_bytes: int, layers: tuple[Layer, ...]) -> Figures:
        run = simulate_training(
            layers,
            fabric,
            partial(make, name),
            steps=steps,
            policy=cast(Policy, policy),
            group_bytes=group_bytes,
            launch_ps=launch_ps,
            placement=placements[name],
            faults=faults,
        )
        exposed_ps = [max(ranks) for ranks in run.exposed_ps]
        mean_ps = sum(run.step_ps) // len(run.step_ps)
        compute_ps = sum(layer.compute_ps for layer in layers)
        return {
            "mean_step_ps": mean_ps,
            "mean_exposed_ps": sum(exposed_ps) // len(exposed_ps),
            "mean_overhead_ps": mean_ps - compute_ps,
            "step_ps": run.step_ps,
            "exposed_ps": run.exposed_ps,
            "compute_ps": compute_ps,
            "ended_ps": run.ended_ps,
            "sent_bytes": run.sent_bytes,
            "events": run.events,
        }

    batches = [(f", {count} samples", _repeated(layers, count)) for count in samples]
    return [
        Case(
            f"{name}, {policy}{f', group {group}' * (len(groups) > 1)}{batch}",
            partial(simulate, name, policy, group_bytes, of_batch),
        )
        for name in names
        for policy in policies
        for group, group_bytes in groups
        for batch, of_batch in batches or [("", layers)]
    ]


def _size(value: Any) -> tuple[str, int]:
    """Return the text and the bytes of a size."""
    return text(value), size(value)


def _repeated(layers: Sequence[Layer], count: int) -> tuple[Layer, ...]:
    """Return layers with the times of `count` samples; `layers` has the times of one sample."""
    return tuple(
        replace(layer, forward_ps=count * layer.forward_ps, backward_ps=count * layer.backward_ps)
        for layer in layers
    )


def _layers(table: Table, computing: float) -> tuple[Layer, ...]:
    found: list[Layer] = []
    for each in table.tables("layer"):
        layer = Layer(
            forward_ps=_slowed(each.take("forward", duration_ps), computing),
            backward_ps=_slowed(each.take("backward", duration_ps), computing),
            gradient_bytes=each.take("gradient", size),
            optimizer_ps=_slowed(each.take("optimizer", duration_ps, 0), computing),
        )
        found += [layer] * each.take("repeat", integer, 1)
        each.end()
    if not found:
        raise table.wrong(UsageError("at least one [[training.layer]] is needed"))
    return tuple(found)


def _slowed(time_ps: int, computing: float) -> int:
    """Return the duration of a computation on the slowest host, in picoseconds."""
    return time_ps if computing == 1.0 else round(time_ps * computing)


def _pipeline(table: Table, fabric: Fabric, faults: Plan, computing: float) -> list[Case]:
    stages, microbatches = table.take("stages", integer), table.take("microbatches", integer)
    replicas = table.take("replicas", integer, 1)
    schedules = table.take("schedule", listed(one_of(*pipeline.names())))
    order = table.take("order", one_of("fixed", "ready"), "fixed")
    cap = table.take_if_there("cap", integer)
    times = [
        tuple(_slowed(time, computing) for time in each_value(table, key, stages, duration_ps))
        for key in ("forward", "backward_input", "backward_weight")
    ]
    messages = each_value(table, "activation", max(0, stages - 1), size)
    gradients = each_value(table, "gradient", stages, size)
    rest_ps = table.take("rest", duration_ps, 0)
    sends = table.take("sends", one_of("asynchronous", "blocking"), "asynchronous")
    ranks = _ranks(table, fabric)
    alike = table.take("alike", boolean, False)
    if alike and (faults or len(set(fabric.hosts)) > 1 or ranks.placed):
        message = "alike needs equal hosts, and neither faults, rank_hosts nor aggregator_host"
        raise table.wrong(UsageError(message))
    make, names = _operation(table, replicas, lazily=alike)
    none = (0,) * (stages - 1)
    try:
        scenario = pipeline.Scenario(
            microbatches=microbatches,
            forward_ps=times[0],
            backward_input_ps=times[1],
            backward_weight_ps=times[2],
            forward_delay_ps=none,
            backward_delay_ps=none,
            memory=(pipeline.StageMemory.of_microbatches(cap),) * stages,
        )
        plans = {schedule: pipeline.generate(schedule, scenario) for schedule in schedules}
    except UsageError as error:
        raise table.wrong(error) from None

    def simulate(schedule: str, name: str) -> Figures:
        plan = plans[schedule]
        simulated = 1 if alike else replicas
        hosts = ranks.hosts[: simulated * plan.ranks]
        on = replace(fabric, hosts=fabric.hosts[: max(hosts) + 1]) if alike else fabric
        run = simulate_hybrid(
            plan,
            scenario,
            on,
            replicas=replicas,
            message_bytes=messages,
            gradient_bytes=gradients,
            all_reduce=partial(make, name),
            order=cast(pipeline.Order, order),
            placement=hosts,
            faults=faults,
            alike=alike,
            blocking=sends == "blocking",
        )
        return {
            "makespan_ps": run.makespan_ps + rest_ps,
            "pipeline_ps": [each.makespan_ps for each in run.pipelines],
            "bubble_share": [float(each.bubble_share) for each in run.pipelines],
            "reduced_ps": run.reduced_ps,
            "sent_bytes": run.sent_bytes,
            "events": run.events,
        }

    for schedule, plan in plans.items():
        needed = replicas * plan.ranks
        if len(ranks.hosts) < needed:
            message = f"{schedule} with {replicas} replicas needs {needed} ranks, "
            raise table.wrong(UsageError(message + f"rank_hosts has {len(ranks.hosts)}"))
        if alike and plan.ranks % ranks.per_host:
            message = f"alike replicas share no host: {schedule} has {plan.ranks} ranks, "
            raise table.wrong(UsageError(message + f"no multiple of {ranks.per_host} per host"))
    return [
        Case(f"{schedule}, {name}", partial(simulate, schedule, name))
        for schedule in schedules
        for name in names
    ]


KINDS: Mapping[str, Callable[[Table, Fabric, Plan, float], list[Case]]] = MappingProxyType(
    {"collective": _collective, "training": _training, "pipeline": _pipeline}
)
"""The reader of each table that describes a simulation on hosts, by the table's name."""

ALONE: Mapping[str, Callable[[Table, Setting], list[Case]]] = MappingProxyType(
    {"iteration": iteration_cases, "job": job_cases, "node": node_cases}
)
"""The reader of each table that describes a simulation without hosts or faults, by its name."""
