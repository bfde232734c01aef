"""The choice of a cut: the best cuts by the bound, improved, and the order of their computations.

    1. for three demands on memory, the cut with the shortest fill and steady state (`_bound`)
    2. a descent from these cuts by the times of iterations (`_improve`)
    3. the search `auto` for the order of computations within the memory, brief for many cuts and
       with full effort for the best few

The even cut is a candidate too, so the iteration is never longer than that of an even cut whose
order comes from the same search.
"""

import math
from dataclasses import dataclass, replace
from itertools import pairwise

from slackline.errors import UsageError
from slackline.plan.partition._bound import shortest
from slackline.plan.partition._cluster import Cluster
from slackline.plan.partition._cut import Costs, Cut, check_stages, even_cut
from slackline.plan.partition._improve import Times, improve
from slackline.plan.partition._links import linked_ps
from slackline.plan.partition._profile import Profile
from slackline.plan.pipeline import (
    PipelinePlan,
    Scenario,
    StageMemory,
    auto,
    lower_bound_ps,
    replay,
)
from slackline.units import show_bytes

__all__ = ["Partition", "Placed", "evaluate", "partition"]

_OPERATIONS = 1_500_000
"""The budget of the descent at effort 1, in timed operations."""
_BRIEF, _PLANNED = 16, 3
"""The numbers of cuts whose orders of computations are searched briefly, and with full effort."""
_BRIEF_EFFORT = 0.05
_PARTS = (0.2, 0.05, 0.01)
"""The parts of the effort with which further orders are made where messages wait for each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A stage with its layers, its device and its memory."""

    first: int
    """The first layer of the stage."""
    end: int
    """The layer behind the last layer of the stage."""
    host: str
    device: int
    """The index of the device on its host."""
    memory: StageMemory
    """The memory of activations in bytes; the cap is what the parameters leave."""
    peak_bytes: int
    """The most memory that the plan's activations occupy at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A cut of a model with the plan of its iteration; the rank of stage i is i."""

    cut: Cut
    stages: tuple[Placed, ...]
    scenario: Scenario
    plan: PipelinePlan
    iteration_ps: int
    """The time of the plan over links that carry one message at a time in each direction."""
    lower_bound_ps: int
    """A time below which no iteration ends: of any cut if `any_cut`, else of this cut."""
    any_cut: bool
    reason: str
    """The reason for the order of computations, as a sentence."""

    @property
    def gap(self) -> float:
        """How far the iteration is above the lower bound, as a part of the bound."""
        return self.iteration_ps / self.lower_bound_ps - 1


def evaluate(
    profile: Profile, cluster: Cluster, cut: Cut, microbatches: int, *, effort: float = 1.0
) -> Partition:
    """Search for the schedule with which an iteration of the pipeline of a given cut is shortest.

    `effort` is that of `slackline.plan.pipeline.auto`. Raises UsageError for a cut that is not one
    of the profile and the cluster, and for a stage that does not fit its device.
    """
    _check(profile, cluster, cut)
    return _planned(Costs(profile, cluster), cut, microbatches, effort)


def partition(
    profile: Profile,
    cluster: Cluster,
    stages: int | None,
    microbatches: int,
    *,
    effort: float = 1.0,
) -> Partition:
    """Cut the layers into stages on the cluster's devices, for the shortest iteration.

    `stages` None makes a stage for each device. `effort` multiplies the search for cuts and for
    orders. The search is deterministic and reads no clock. Raises UsageError for numbers that do
    not fit together, and if no cut fits the memory.
    """
    count = cluster.devices if stages is None else stages
    check_stages(profile, cluster, count)
    if microbatches < 1:
        raise UsageError(f"microbatches must be a positive integer, not {microbatches}")
    if not 0 < effort < math.inf:
        raise UsageError(f"effort must be positive and finite, not {effort:g}")
    costs = Costs(profile, cluster)
    demands = (lambda stage: 1, lambda stage: count - stage, lambda stage: 2 * (count - stage) - 1)
    found = [shortest(costs, count, microbatches, held) for held in demands]
    floor = found[0]
    floor_ps = 0 if floor is None else floor.lower_bound_ps
    even = even_cut(profile, cluster, count)
    if floor is None and not costs.fits(even):
        raise UsageError(_too_large(costs, count))
    times = Times(costs, microbatches)
    starts = list(dict.fromkeys([*(each.cut for each in found if each is not None), even]))
    starts = [cut for cut in starts if times.time_ps(cut) is not None]
    starts.sort(key=lambda cut: times.known[cut])
    for number, cut in enumerate(starts[:2]):
        if min(times.known.values()) <= floor_ps:
            break
        improve(times, cut, int(effort * _OPERATIONS) // (2 + number), floor_ps)
    brief: list[Partition] = []
    for cut in times.best(_BRIEF):
        brief.append(_planned(costs, cut, microbatches, _BRIEF_EFFORT * effort))
        if brief[-1].iteration_ps <= floor_ps:
            break  # No cut is better.
    brief.sort(key=lambda each: each.iteration_ps)
    best: Partition | None = None
    for cut in dict.fromkeys([*(each.cut for each in brief[:_PLANNED]), even]):
        if not costs.fits(cut):
            continue
        if best is None or _bound(costs, cut, microbatches) < best.iteration_ps:
            each = _planned(costs, cut, microbatches, effort)
            if best is None or each.iteration_ps < best.iteration_ps:
                best = each
    assert best is not None, "at least one cut fits"
    if floor is None:
        return best
    return replace(best, lower_bound_ps=floor_ps, any_cut=True)


def _planned(costs: Costs, cut: Cut, microbatches: int, effort: float) -> Partition:
    """Search for the order of a cut's computations."""
    scenario = costs.scenario(cut, microbatches)
    busy = [
        costs.busy_ps(*hosts, place)
        for hosts, place in zip(pairwise(cut.hosts), cut.bounds[1:-1], strict=True)
    ]
    found = auto(scenario, effort=effort)
    took = linked_ps(found.plan, scenario, busy)
    if took > found.makespan_ps:
        # Messages wait for each other, which the search does not see: try its other orders.
        others = [auto(scenario, effort=effort * part) for part in _PARTS]
        times = [linked_ps(each.plan, scenario, busy) for each in others]
        if min(times) < took:
            took = min(times)
            found = others[times.index(took)]
    peaks = replay(found.plan, scenario).peak_activations
    stages = []
    for stage, (host, memory) in enumerate(zip(cut.hosts, scenario.memory, strict=True)):
        stages.append(
            Placed(
                first=cut.bounds[stage],
                end=cut.bounds[stage + 1],
                host=costs.cluster.hosts[host].name,
                device=cut.hosts[:stage].count(host),
                memory=memory,
                peak_bytes=int(peaks[stage] * memory.activation),
            )
        )
    return Partition(
        cut=cut,
        stages=tuple(stages),
        scenario=scenario,
        plan=found.plan,
        iteration_ps=took,
        lower_bound_ps=max(found.lower_bound_ps, costs.link_bound_ps(cut, scenario)),
        any_cut=False,
        reason=found.reason,
    )


def _bound(costs: Costs, cut: Cut, microbatches: int) -> int:
    """Return a time below which no iteration of the cut ends."""
    scenario = costs.scenario(cut, microbatches)
    return max(lower_bound_ps(scenario), costs.link_bound_ps(cut, scenario))


def _too_large(costs: Costs, stages: int) -> str:
    """Return the error for a model without a cut that fits, with the layer that needs the most."""
    needed = costs.needed_bytes(1)
    sizes = [end - first for first, end in pairwise(needed)]
    largest = max(range(costs.layers), key=sizes.__getitem__)
    each = max(costs.memory)
    return (
        f"no cut into {stages} stages was found in which every stage fits its device with one "
        f"activation: the layers need {show_bytes(needed[-1])}, layer "
        f"{costs.profile.layers[largest].name!r} alone {show_bytes(sizes[largest])}, and the "
        f"largest device has {show_bytes(each)}"
    )


def _check(profile: Profile, cluster: Cluster, cut: Cut) -> None:
    check_stages(profile, cluster, cut.stages)
    bounds, hosts = cut.bounds, cut.hosts
    if len(bounds) != cut.stages + 1 or any(end <= first for first, end in pairwise(bounds)):
        raise UsageError(
            f"bounds of {cut.stages} stages must be {cut.stages + 1} increasing numbers, "
            f"not {bounds}"
        )
    if bounds[0] != 0 or bounds[-1] != len(profile.layers):
        raise UsageError(f"bounds must go from 0 to {len(profile.layers)}, not {bounds}")
    for host in hosts:
        if not 0 <= host < len(cluster.hosts):
            raise UsageError(f"hosts must be from 0 to {len(cluster.hosts) - 1}, not {host}")
        if hosts.count(host) > cluster.hosts[host].devices:
            raise UsageError(
                f"host {cluster.hosts[host].name} has {cluster.hosts[host].devices} devices, "
                f"but {hosts.count(host)} stages"
            )
