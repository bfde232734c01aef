"""A descent from good cuts by the time of their planned iterations.

The bound of `_bound` knows neither the drain of the pipeline nor the memory that activations need.
The descent therefore compares cuts by the time of an iteration in which each stage runs whatever is
ready, B before F before W, within its memory. A change moves a boundary by some layers, exchanges
the hosts of two stages, with their numbers of layers or without, or moves a stage to an unused
device. Cuts whose lower bound is not below the best time are not timed. Where no change helps, the
descent starts again from some random changes of the best cut. The search draws from one seed and
counts timed operations.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from random import Random

from slackline.plan.partition._cut import Costs, Cut
from slackline.plan.pipeline.orders import Knobs, Work, list_schedule, lower_bound_ps

__all__ = ["Times", "improve"]

_STEPS = (-1, 1, -2, 2, -4, 4)
_IDLE = 100
"""The number of restarts without a better cut after which the search ends."""


class Times:
    """The times of iterations by readiness, each cut timed once."""

    def __init__(self, costs: Costs, microbatches: int) -> None:
        self.costs, self.microbatches = costs, microbatches
        self.known: dict[Cut, int] = {}
        self.spent = 0
        """The number of operations timed."""

    def time_ps(self, cut: Cut, below: int | None = None) -> int | None:
        """Return the time of an iteration; None where a stage does not fit its device.

        None is also returned where the lower bound shows a time of `below` or more.
        """
        self.spent += 10 * cut.stages
        known = self.known.get(cut)
        if known is not None:
            return known
        if not self.costs.fits(cut):
            return None
        scenario = self.costs.scenario(cut, self.microbatches)
        floor = max(lower_bound_ps(scenario), self.costs.link_bound_ps(cut, scenario))
        if below is not None and floor >= below:
            return None
        work = Work.of(scenario)
        makespan, _ = list_schedule(work, Knobs.plain(cut.stages))
        self.spent += work.operations
        self.known[cut] = max(makespan, floor)
        return self.known[cut]

    def best(self, count: int) -> list[Cut]:
        """Return the cuts with the shortest times, at most `count`, the shortest first."""
        return sorted(self.known, key=lambda cut: (self.known[cut], cut.bounds, cut.hosts))[:count]


def improve(times: Times, start: Cut, operations: int, floor_ps: int) -> None:
    """Descend from a cut, then from random changes of the best cut while operations are left.

    The search ends early at a cut whose time is down to `floor_ps`, a bound for all cuts.
    """
    end, random = times.spent + operations, Random(0)
    best = _descend(times, start, end, random)
    idle = 0
    while times.spent < end and idle < _IDLE and times.known[best] > floor_ps:
        changed = best
        for _ in range(random.randint(2, 4)):
            changes = list(_changes(times.costs, changed))
            if not changes:
                return
            changed = random.choice(changes)
        idle += 1
        if times.time_ps(changed) is None:
            continue
        found = _descend(times, changed, end, random)
        if times.known[found] < times.known[best]:
            best, idle = found, 0


def _descend(times: Times, start: Cut, end: int, random: Random) -> Cut:
    """Take changes that make the iteration shorter, as long as there is one and up to `end`."""
    times.time_ps(start)
    best, better = start, True
    while better:
        better = False
        changes = list(_changes(times.costs, best))
        random.shuffle(changes)
        for change in changes:
            if times.spent >= end:
                return best
            found = times.time_ps(change, times.known[best])
            if found is not None and found < times.known[best]:
                best, better = change, True
                break
    return best


def _changes(costs: Costs, cut: Cut) -> Iterator[Cut]:
    bounds, hosts = cut.bounds, cut.hosts
    sizes = [end - first for first, end in pairwise(bounds)]
    for i in range(1, cut.stages):
        for step in _STEPS:
            moved = bounds[i] + step
            if bounds[i - 1] < moved < bounds[i + 1]:
                yield Cut((*bounds[:i], moved, *bounds[i + 1 :]), hosts)
    for i in range(cut.stages):
        for j in range(i + 1, cut.stages):
            if hosts[i] != hosts[j]:
                places = _exchanged(hosts, i, j)
                yield Cut(bounds, places)
                if sizes[i] != sizes[j]:
                    yield Cut((0, *accumulate(_exchanged(sizes, i, j))), places)
        for host, each in enumerate(costs.cluster.hosts):
            if host != hosts[i] and hosts.count(host) < each.devices:
                yield Cut(bounds, (*hosts[:i], host, *hosts[i + 1 :]))


def _exchanged(values: Sequence[int], i: int, j: int) -> tuple[int, ...]:
    found = list(values)
    found[i], found[j] = values[j], values[i]
    return tuple(found)
