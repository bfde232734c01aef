"""A descent from good cuts by the time of their planned iterations.

The bound of `_bound` knows neither the drain of the pipeline nor the memory that activations need.
The descent therefore compares cuts by the time of an iteration in which each stage runs whatever is
ready, B before F before W, within its memory. A change moves a boundary by some layers, exchanges
the hosts of two stages, or moves a stage to an unused device. Cuts whose lower bound is not below
the best time are not timed. The search draws from one seed and counts timed operations.
"""

from collections.abc import Iterator
from random import Random

from slackline.plan.partition._cut import Costs, Cut
from slackline.plan.pipeline.orders import Knobs, Work, list_schedule, lower_bound_ps

__all__ = ["Times", "improve"]

_STEPS = (-1, 1, -2, 2, -4, 4)


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
        known = self.known.get(cut)
        if known is not None:
            return known
        if not self.costs.fits(cut):
            return None
        scenario = self.costs.scenario(cut, self.microbatches)
        floor = max(lower_bound_ps(scenario), self.costs.link_bound_ps(cut, scenario))
        self.spent += 10 * cut.stages
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


def improve(times: Times, start: Cut, operations: int) -> None:
    """Change the cut as long as its iteration gets shorter and operations are left."""
    end, random = times.spent + operations, Random(0)
    best, shortest = start, times.time_ps(start)
    better = True
    while better:
        better = False
        changes = list(_changes(times.costs, best))
        random.shuffle(changes)
        for change in changes:
            if times.spent >= end:
                return
            found = times.time_ps(change, shortest)
            if found is not None and (shortest is None or found < shortest):
                best, shortest, better = change, found, True
                break


def _changes(costs: Costs, cut: Cut) -> Iterator[Cut]:
    bounds, hosts = cut.bounds, cut.hosts
    for i in range(1, cut.stages):
        for step in _STEPS:
            moved = bounds[i] + step
            if bounds[i - 1] < moved < bounds[i + 1]:
                yield Cut((*bounds[:i], moved, *bounds[i + 1 :]), hosts)
    for i in range(cut.stages):
        for j in range(i + 1, cut.stages):
            if hosts[i] != hosts[j]:
                swapped = list(hosts)
                swapped[i], swapped[j] = hosts[j], hosts[i]
                yield Cut(bounds, tuple(swapped))
        for host, each in enumerate(costs.cluster.hosts):
            if host != hosts[i] and hosts.count(host) < each.devices:
                yield Cut(bounds, (*hosts[:i], host, *hosts[i + 1 :]))
