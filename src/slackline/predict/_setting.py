"""The conditions under which a run is simulated, and the effect of each change on them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from slackline.errors import UsageError
from slackline.faults import LinkFault, NicFault, Plan
from slackline.lab import beyond_kernel, burst_bytes
from slackline.plan.collective import PLANS, Collective
from slackline.predict._changes import (
    Bucket,
    Change,
    Compute,
    FaultChange,
    Hosts,
    Latency,
    Nics,
    PlanChange,
    Ranks,
    Rate,
    Schedule,
)
from slackline.predict._run import Group, Run
from slackline.units import show_bytes, show_number, show_rate, show_time

__all__ = ["Setting", "apply", "setting_of"]

_FAR = 4
"""The ratio to the measured value from which a rate, a latency or a number counts as far away."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The ranks, the network and the reductions of a simulated run."""

    ranks: int
    hosts: int
    nics: int
    rate_bps: int
    """The rate at which a NIC carries data; where `hosts` is 1, the rate of memory."""
    burst_bytes: int
    """The bytes that a NIC may send, or receive, ahead of its rate after a pause."""
    one_way_ns: int
    """The time of a message without payload from one rank to another."""
    groups: tuple[Group, ...]
    """The reductions of a step, in the order of their posts."""
    parts: tuple[tuple[int, ...], ...]
    """For each group, the measured groups whose computation precedes its post."""
    shares: tuple[float, ...]
    """For each group, the part of the computation of `parts` that precedes its post."""
    computing: float = 1.0
    """The factor by which computations take longer than they were measured."""
    faults: Plan = field(default_factory=Plan)
    """The faults of the network and the ranks."""

    @property
    def ranks_per_host(self) -> int:
        """The number of ranks on each host."""
        return self.ranks // self.hosts


def setting_of(run: Run) -> Setting:
    """Return the conditions of the run as it was measured."""
    return Setting(
        ranks=run.ranks,
        hosts=run.hosts,
        nics=run.nics,
        rate_bps=run.link.rate_bps,
        burst_bytes=run.burst_bytes,
        one_way_ns=run.link.one_way_ns,
        groups=run.groups,
        parts=tuple((number,) for number in range(len(run.groups))),
        shares=(1.0,) * len(run.groups),
        faults=run.faults,
    )


def apply(run: Run, changes: Sequence[Change]) -> tuple[Setting, tuple[str, ...]]:
    """Return the conditions after the changes, and sentences about values far from measured ones.

    Raises UsageError for a change that the run cannot have.
    """
    setting = setting_of(run)
    warnings: list[str] = []
    # The number of hosts and ranks bounds the hosts that plans and faults may name.
    for change in sorted(changes, key=lambda each: _ORDER.index(type(each))):
        try:
            setting, said = _APPLY[type(change)](run, setting, change)
        except UsageError as error:
            raise UsageError(
                f"{run.name} cannot have the change {str(change)!r}: {error}"
            ) from None
        warnings += said
    return setting, tuple(warnings)


_Result = tuple[Setting, list[str]]


def _needs_network(setting: Setting) -> None:
    if setting.hosts == 1:
        raise UsageError(
            "all its ranks share one host, and no network was measured; accepted are plan, "
            "ranks, bucket, compute, and faults of ranks"
        )


def _nics(run: Run, setting: Setting, change: Nics) -> _Result:
    _needs_network(setting)
    said = []
    if change.count > run.nics:
        said.append(f"the run had {run.nics} NIC{'s' * (run.nics > 1)} a host")
    return replace(setting, nics=change.count), said


def _rate(run: Run, setting: Setting, change: Rate) -> _Result:
    _needs_network(setting)
    carried = run.link.rate_bps / run.nominal_bps if run.nominal_bps else 1.0
    said = []
    if not run.nominal_bps:
        said.append("the nominal rate of the run's NICs is not known: data get the full new rate")
    base = run.nominal_bps or run.link.rate_bps
    said += _far("rate", change.rate_bps, base, show_rate)
    return replace(
        setting,
        rate_bps=max(1, round(change.rate_bps * carried)),
        # The bucket of a lab suits its rate.
        burst_bytes=burst_bytes(change.rate_bps) if run.burst_bytes else 0,
    ), said


def _latency(run: Run, setting: Setting, change: Latency) -> _Result:
    _needs_network(setting)
    said = _far("latency", change.one_way_ns, run.link.one_way_ns, show_time)
    # A lab can delay packets in its user-space switch only, which has no token bucket.
    return replace(setting, one_way_ns=change.one_way_ns, burst_bytes=0), said


def _hosts(run: Run, setting: Setting, change: Hosts) -> _Result:
    _needs_network(setting)
    if change.count < 2:
        raise UsageError("a network needs at least 2 hosts")
    ranks = run.ranks // run.hosts * change.count
    said = _far("number of hosts", change.count, run.hosts, str)
    return replace(setting, hosts=change.count, ranks=ranks), said


def _ranks(run: Run, setting: Setting, change: Ranks) -> _Result:
    if change.count < 2:
        raise UsageError("a reduction needs at least 2 ranks")
    if run.ranks == run.hosts:
        return _hosts(run, setting, Hosts(change.count))
    if change.count % setting.hosts:
        raise UsageError(f"its {setting.hosts} hosts need equally many ranks each")
    said = _far("number of ranks", change.count, run.ranks, str)
    return replace(setting, ranks=change.count), said


def _plan(run: Run, setting: Setting, change: PlanChange) -> _Result:
    if PLANS[Collective.ALL_REDUCE, change.name].helpers and setting.hosts == 1:
        raise UsageError(f"{change.name} needs an aggregation node behind a network")
    groups = tuple(Group(nbytes=each.nbytes, plan=change.name) for each in setting.groups)
    said = []
    if change.name not in {group.plan for group in run.groups}:
        said.append(f"the run had no all_reduce with the plan {change.name}")
    return replace(setting, groups=groups), said


def _bucket(run: Run, setting: Setting, change: Bucket) -> _Result:
    groups: list[Group] = []
    parts: list[list[int]] = []
    shares: list[float] = []
    cut = False
    for number, group in enumerate(setting.groups):
        pieces = max(1, -(-group.nbytes // change.nbytes)) if change.nbytes else 1
        if pieces > 1:  # Gradients inside a measured group are not known.
            cut = True
            unit = -(-group.nbytes // (4 * pieces)) * 4
            sizes = [min(unit, group.nbytes - start) for start in range(0, group.nbytes, unit)]
            groups += [replace(group, nbytes=size) for size in sizes]
            parts += [[number] for _ in sizes]
            shares += [size / group.nbytes for size in sizes]
        elif groups and shares[-1] == 1.0 and groups[-1].nbytes + group.nbytes <= change.nbytes:
            groups[-1] = replace(groups[-1], nbytes=groups[-1].nbytes + group.nbytes)
            parts[-1].append(number)
        else:
            groups.append(group)
            parts.append([number])
            shares.append(1.0)
    said = []
    if cut:
        least = min(group.nbytes for group in setting.groups)
        said.append(
            f"gradients inside the measured groups, the smallest of {show_bytes(least)}, are not "
            "known: each longer group is cut into equal parts"
        )
    elif groups:
        longest = max(group.nbytes for group in setting.groups)
        said += _far("longest group", max(each.nbytes for each in groups), longest, show_bytes)
    new = replace(
        setting, groups=tuple(groups), parts=tuple(map(tuple, parts)), shares=tuple(shares)
    )
    return new, said


def _compute(run: Run, setting: Setting, change: Compute) -> _Result:
    factor = max(change.factor, 1 / change.factor)
    said = [f"computation changes by a factor of {show_number(factor)}"] if factor > _FAR else []
    return replace(setting, computing=change.factor), said


def _fault(run: Run, setting: Setting, change: FaultChange) -> _Result:
    if isinstance(change.fault, LinkFault | NicFault):
        _needs_network(setting)
    plan = Plan((*setting.faults.faults, change.fault))
    plan.of_network.check(setting.hosts, setting.nics)
    plan.of_ranks.check(setting.ranks, setting.nics)
    # A lab takes its user-space switch, which has no token bucket, for such a fault.
    bucket = setting.burst_bytes if beyond_kernel((change.fault,)) is None else 0
    said = ["the run was measured without this fault"]
    return replace(setting, faults=plan, burst_bytes=bucket), said


def _schedule(run: Run, setting: Setting, change: Schedule) -> _Result:
    raise UsageError(
        "it has no pipeline; accepted are nics, rate, latency, hosts, ranks, plan, bucket, compute "
        "and faults"
    )


def _far(what: str, value: int, measured: int, text: Callable[[int], str]) -> list[str]:
    """Return a sentence for a value that is far from the measured one, else nothing."""
    low, high = sorted((value, measured))
    if high < _FAR * max(low, 1):
        return []
    return [f"the {what} is {text(value)}, and {text(measured)} was measured"]


_APPLY: Mapping[type[Change], Callable[[Run, Setting, Any], _Result]] = {
    Hosts: _hosts,
    Ranks: _ranks,
    Nics: _nics,
    Rate: _rate,
    Latency: _latency,
    Compute: _compute,
    Bucket: _bucket,
    PlanChange: _plan,
    Schedule: _schedule,
    FaultChange: _fault,
}
_ORDER = tuple(_APPLY)
