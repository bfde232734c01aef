"""The cut whose fill and steady state are the shortest, found exactly by dynamic programming.

With N microbatches, no order of computations ends earlier than

    J = max over stages i of  head_i + N (tF_i + tB_i + tW_i)

where head_i, the fill, is the time until the first microbatch reaches stage i: the forwards and
delays of the stages above. A link bounds the time likewise: N messages leave it one by one. The
search finds the cut with the smallest J by bisection. For a limit T, `_reach` goes over the stages:
for each number of layers placed, set of devices used, and latest host, it keeps the cut with the
shortest fill, because a shorter fill leaves every later stage more of T. Hosts that can be
exchanged for each other (same speed, memory, devices and links) count as one choice.

Three rules remove states that cannot lead to a cut within T: a stage's work exceeds its share of T,
a stage exceeds its memory, or the remaining layers are more than the remaining devices can compute.
A level with more states than a width keeps the most promising; then the result may not be optimal.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Optional

from slackline.plan.partition._cut import Costs, Cut

__all__ = ["Best", "shortest"]

_NARROW, _WIDE = 300, 40_000
"""The states that a level keeps in a quick attempt, and in an attempt that is to prove a bound."""
_STATES = 300_000
"""The number of states in all attempts together after which the search proves no closer bound."""
_PRECISION = 10_000
"""The bisection ends when its interval is shorter than this part of the limit.

From then on the search only tries to find a cut with a smaller J than the best.
"""
Held = Callable[[int], int]
"""The number of activations for which stage i of a cut must have memory."""


@dataclass(frozen=True, slots=True)
class Best:
    """The cut with the smallest bound J, and a value that no cut's J is below."""

    cut: Cut
    lower_bound_ps: int
    exact: bool
    """Whether the lower bound is the cut's own J, so that no cut has a smaller J."""


class _State(NamedTuple):
    fill_ps: int
    """The end of the first forward on the latest stage."""
    place: int
    """The number of layers that have a stage."""
    used: tuple[int, ...]
    """The number of used devices of each host."""
    host: int
    above: Optional["_State"]


def shortest(costs: Costs, stages: int, microbatches: int, held: Held) -> Best | None:
    """Return the cut with the smallest bound J; None if no cut was found that fits the memory."""
    search = _Search(costs, stages, microbatches, held)
    floor, ceiling = search.floor_ps(), search.ceiling_ps()
    limit, low = floor + floor // 50, floor
    cut, complete = search.reach(limit, _NARROW)
    while cut is None and limit < ceiling:
        low = limit + 1 if complete else low
        limit = 2 * limit - floor if limit < 8 * floor else ceiling
        cut, complete = search.reach(limit, _NARROW if limit < ceiling else _WIDE)
    if cut is None:
        return None
    high, proved = search.bound_ps(cut), low
    while low < high:
        close = high - low <= high // _PRECISION
        if close and search.states >= _STATES:
            break
        middle = high - 1 if close else (low + high) // 2
        better, complete = search.reach(middle, _NARROW)
        if better is None and not complete and search.states < _STATES:
            better, complete = search.reach(middle, _WIDE)
        if better is not None:
            cut, high = better, search.bound_ps(better)
        else:
            low = middle + 1
            proved = low if complete else proved
    return Best(cut, min(proved, high), exact=proved >= high)


class _Search:
    """The dynamic program for one profile, cluster and number of stages."""

    def __init__(self, costs: Costs, stages: int, microbatches: int, held: Held) -> None:
        self.costs, self.stages, self.microbatches = costs, stages, microbatches
        self.needed = [
            costs.needed_bytes(min(microbatches, held(stage))) for stage in range(stages)
        ]
        self.classes = _classes(costs)
        self.speeds = [float(host.speed) for host in costs.cluster.hosts]
        self.devices = [host.devices for host in costs.cluster.hosts]
        self.states = 0
        self.choices: dict[tuple[tuple[int, ...], int], list[_Choice]] = {}

    def floor_ps(self) -> int:
        """Return a bound on J: all work, divided evenly over the fastest devices."""
        capacity = self.capacity((0,) * len(self.devices), self.stages)
        total = self.costs.reference[-1] * self.microbatches
        return int(total / capacity * (1 - 1e-9))

    def ceiling_ps(self) -> int:
        """Return a limit within which every cut's bound J lies."""
        costs, hosts = self.costs, range(len(self.devices))
        longest = max(
            costs.delay_ps(above, below, place)
            + self.microbatches * costs.busy_ps(above, below, place)
            for above in hosts
            for below in hosts
            for place in range(1, costs.layers + 1)
        )
        slowest = max(work[-1] for work in costs.work)
        return (self.microbatches + 1) * slowest + self.stages * longest + 1

    def capacity(self, used: tuple[int, ...], stages: int) -> float:
        """Return the sum of the speeds of the fastest unused devices, one for each stage."""
        free = sorted(
            speed
            for speed, count, taken in zip(self.speeds, self.devices, used, strict=True)
            for _ in range(count - taken)
        )
        return sum(free[len(free) - stages :]) if stages else 0.0

    def bound_ps(self, cut: Cut) -> int:
        """Return the bound J of a cut."""
        costs, count = self.costs, self.microbatches
        fill = longest = 0
        for stage, host in enumerate(cut.hosts):
            first, end = cut.bounds[stage], cut.bounds[stage + 1]
            if stage:
                above = cut.hosts[stage - 1]
                longest = max(longest, fill + count * costs.busy_ps(above, host, first))
                fill += costs.delay_ps(above, host, first)
            longest = max(longest, fill + count * (costs.work[host][end] - costs.work[host][first]))
            fill += costs.forward[host][end] - costs.forward[host][first]
        return longest

    def reach(self, limit: int, width: int) -> tuple[Cut | None, bool]:
        """Return a cut with J of at most `limit`, and whether the search left out no state."""
        complete = True
        level = [_State(0, 0, (0,) * len(self.devices), -1, None)]
        for stage in range(self.stages):
            level = self._next(level, stage, limit)
            self.states += len(level)
            if len(level) > width:
                complete = False
                level.sort(key=lambda state: self._slack(state, stage, limit), reverse=True)
                del level[width:]
        if not level:
            return None, complete
        state: _State | None = min(level, key=lambda each: each[:4])
        bounds, hosts = [], []
        while state is not None and state.above is not None:
            bounds.append(state.place)
            hosts.append(state.host)
            state = state.above
        return Cut((0, *reversed(bounds)), tuple(reversed(hosts))), complete

    def _next(self, level: list[_State], stage: int, limit: int) -> list[_State]:
        """Return the states after one more stage, the shortest fill of each."""
        costs, count, needed = self.costs, self.microbatches, self.needed[stage]
        layers, after = costs.layers, self.stages - stage - 1
        reference = costs.reference
        found: dict[tuple[object, int], _State] = {}
        for state in level:
            fill, place, used, last, _ = state
            for host, key, now_used, capacity in self._choices(used, last, after):
                begin = fill
                if last >= 0:
                    if fill + count * costs.busy_ps(last, host, place) > limit:
                        continue
                    begin += costs.delay_ps(last, host, place)
                if begin >= limit:
                    continue
                work, forward = costs.work[host], costs.forward[host]
                most = bisect_right(work, work[place] + (limit - begin) // count) - 1
                most = min(most, costs.furthest(place, host, needed), layers - after)
                rest = capacity * (limit - begin) / count * (1 + 1e-9)
                least = max(place + 1, bisect_left(reference, reference[-1] - rest))
                before = begin - forward[place]
                for end in range(least if after else layers, most + 1):
                    name, then = (key, end), before + forward[end]
                    known = found.get(name)
                    if known is None or then < known.fill_ps:
                        found[name] = _State(then, end, now_used, host, state)
        return list(found.values())

    def _choices(self, used: tuple[int, ...], last: int, after: int) -> list["_Choice"]:
        """Return the hosts that can have the next stage, one of each kind."""
        known = self.choices.get((used, last))
        if known is not None:
            return known
        found = []
        for members in self.classes:
            seen = set()
            for host in members:
                kind = (used[host], host == last)
                if used[host] == self.devices[host] or kind in seen:
                    continue
                seen.add(kind)
                now = (*used[:host], used[host] + 1, *used[host + 1 :])
                key = tuple(
                    tuple(sorted((now[each], each == host) for each in group))
                    for group in self.classes
                )
                found.append(_Choice(host, key, now, self.capacity(now, after)))
        self.choices[used, last] = found
        return found

    def _slack(self, state: _State, stage: int, limit: int) -> float:
        """Return the work that the remaining devices can do within the limit, beyond what is left.

        The value is a part of their work.
        """
        capacity = self.capacity(state.used, self.stages - stage - 1)
        can = capacity * (limit - state.fill_ps)
        left = self.costs.reference[-1] - self.costs.reference[state.place]
        return (can - self.microbatches * left) / can if can else 0.0


class _Choice(NamedTuple):
    host: int
    key: object
    """The devices used, the same for states that differ only by an exchange of equal hosts."""
    used: tuple[int, ...]
    capacity: float


def _classes(costs: Costs) -> list[list[int]]:
    """Return groups of hosts that can be exchanged for each other."""
    hosts = costs.cluster.hosts
    found: list[list[int]] = []
    for a, host in enumerate(hosts):
        for members in found:
            b = members[0]
            other = hosts[b]
            if (host.speed, host.devices, host.memory_bytes) == (
                other.speed,
                other.devices,
                other.memory_bytes,
            ) and all(
                costs.link(a, c) == costs.link(b, c) for c in range(len(hosts)) if c not in (a, b)
            ):
                members.append(a)
                break
        else:
            found.append([a])
    return found
