"""Simulated annealing of a pipeline's order of operations: each move changes the critical path.

The critical path is a chain of operations that determines the makespan: each operation of the chain
starts when the previous one ends or its message arrives. An order gets better only if this chain is
broken. A move takes an operation of the chain and puts it elsewhere in its stage's order. An
operation whose message the chain waits for moves before its neighbours, and an operation whose
result the chain does not wait for moves behind them. Moves that make the plan longer are accepted
too, with a probability that falls with the increase and with time (Kirkpatrick et al., 1983). Only
operations that start after the place of the move are timed again.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from slackline.plan.pipeline.orders import B, F, Orders, W, Work

HEAT = (0.006, 0.0003)
__all__ = ["Timed", "anneal", "timed"]


@dataclass(frozen=True, slots=True)
class Timed:
    """The start and end times of the operations in a set of stage orders."""

    makespan: int
    starts: list[list[int]]
    """The start times of each stage's operations."""
    ends_f: list[list[int]]
    """The end times of each stage's forwards."""
    ends_b: list[list[int]]


def timed(work: Work, orders: Orders, old: Timed | None = None, since: int = 0) -> Timed | None:
    """Compute the times of the orders; None if the stages deadlock.

    `old` may have the times of orders that differ only in operations that start at `since` or
    later; the earlier times are then reused.
    """
    last = work.stages - 1
    starts: list[list[int]] = []
    ends_f: list[list[int]] = []
    ends_b: list[list[int]] = []
    free = []
    for i, order in enumerate(orders):
        place = 0 if old is None else bisect_left(old.starts[i], since)
        if old is None or not place:
            starts.append([])
            ends_f.append([])
            ends_b.append([])
            free.append(0)
            continue
        before = old.starts[i]
        starts.append(before[:place])
        ends_f.append(old.ends_f[i][: order.count(F, 0, place)])
        ends_b.append(old.ends_b[i][: order.count(B, 0, place)])
        free.append(before[place - 1] + work.times[i][order[place - 1]])
    down, up = work.forward_delays, work.backward_delays
    waiting = bytearray(last + 1)
    stack = list(range(last, -1, -1))
    while stack:
        i = stack.pop()
        waiting[i] = 0
        order, mine_f, mine_b, begun = orders[i], ends_f[i], ends_b[i], starts[i]
        t_f, t_b, t_w = work.times[i]
        now = free[i]
        above = ends_f[i - 1] if i else None
        delay_f = down[i - 1]
        below = ends_b[i + 1] if i < last else mine_f
        delay_b = up[i + 1] if i < last else 0
        count_f, count_b = len(mine_f), len(mine_b)
        for kind in memoryview(order)[len(begun) :]:
            if kind == F:
                if above is not None:
                    if count_f == len(above):
                        waiting[i] = 1
                        break
                    there = above[count_f] + delay_f
                    if there > now:
                        now = there
                begun.append(now)
                now += t_f
                mine_f.append(now)
                count_f += 1
                if i < last and waiting[i + 1]:
                    waiting[i + 1] = 0
                    stack.append(i + 1)
            elif kind == B:
                if count_b == len(below):
                    waiting[i] = 1
                    break
                there = below[count_b] + delay_b
                if there > now:
                    now = there
                begun.append(now)
                now += t_b
                mine_b.append(now)
                count_b += 1
                if i and waiting[i - 1]:
                    waiting[i - 1] = 0
                    stack.append(i - 1)
            else:
                begun.append(now)
                now += t_w
        free[i] = now
    if any(waiting):
        return None
    return Timed(max(free), starts, ends_f, ends_b)


def anneal(
    work: Work,
    orders: Orders,
    *,
    operations: int,
    floor: int,
    random: Random,
    stop: Callable[[], bool],
) -> tuple[int, Orders, int]:
    """Anneal the orders; return the best makespan, its orders and the number of operations timed.

    The annealing ends when `operations` have been timed, when the makespan is down to `floor`, or
    when `stop` returns True.
    """
    current = timed(work, orders)
    assert current is not None, "annealing starts from orders that run"
    best, best_orders = current.makespan, orders
    orders = [order[:] for order in orders]
    spent = 0
    heat_first, heat_last = best * HEAT[0], best * HEAT[1]
    runs = _critical(work, orders, current, random)
    while spent < operations and best > floor and not stop():
        heat = heat_first * (heat_last / heat_first) ** (spent / operations)
        spent += 10
        stage, first, end = runs[random.randrange(len(runs))]
        moved = _moved(work, stage, orders[stage], first, end, random)
        if moved is None:
            continue
        place, changed = moved
        since = current.starts[stage][place]
        trial = [*orders[:stage], changed, *orders[stage + 1 :]]
        result = timed(work, trial, current, since)
        spent += work.operations * (current.makespan - since) // current.makespan
        if result is None:
            continue
        worse = result.makespan - current.makespan
        if worse <= 0 or random.random() < math.exp(-worse / heat):
            orders, current = trial, result
            runs = _critical(work, orders, current, random)
            if result.makespan < best:
                best, best_orders = result.makespan, orders
    return best, best_orders, spent


def _critical(work: Work, orders: Orders, at: Timed, random: Random) -> list[tuple[int, int, int]]:
    """Return the critical path as runs, operations of a stage without a pause between them.

    A run is (stage, first index, last index). The run at the end of the makespan comes first. Ties
    are broken at random.
    """
    last = work.stages - 1
    stage = random.choice(
        [
            i
            for i in range(work.stages)
            if at.starts[i][-1] + work.times[i][orders[i][-1]] == at.makespan
        ]
    )
    place = len(orders[stage]) - 1
    runs = []
    while True:
        starts, order, times = at.starts[stage], orders[stage], work.times[stage]
        end = place
        while place and starts[place - 1] + times[order[place - 1]] == starts[place]:
            place -= 1
        runs.append((stage, place, end))
        start, kind = starts[place], order[place]
        if start == 0:
            return runs
        if kind == F:
            stage -= 1
            sent = start - work.forward_delays[stage] - work.times[stage][F]
        elif kind == B and stage < last:
            stage += 1
            sent = start - work.backward_delays[stage] - work.times[stage][B]
        else:
            return runs
        place = bisect_left(at.starts[stage], sent)


def _moved(
    work: Work, stage: int, order: bytearray, first: int, end: int, random: Random
) -> tuple[int, bytearray] | None:
    """Draw a random move of one operation within a run of the critical path: see `_critical`.

    Returns the first changed index and the stage's new order, or None if the move breaks a rule.
    The run spans `first` to `end` of the stage's order, and the operation that the later path
    waits for is at `end`.
    """
    draw = random.random()
    reach = 1 + int(random.expovariate(0.5))
    if draw < 0.4:
        source = end
        target = max(source - reach, 0)
    else:
        source = random.randint(max(first - 1, 0), end)
        kind = order[source]
        early = random.random() < (0.3 if kind == W else 0.6)
        target = max(source - reach, 0) if early else min(source + reach, len(order) - 1)
    kind = order[source]
    low, high = (source, target) if source < target else (target, source)
    if order.count(kind, low, high + 1) == high + 1 - low:
        return None
    part = order[low : high + 1]
    part.insert(target - low, part.pop(source - low))
    changed = order[:low] + part + order[high + 1 :]
    held, cap = work.held[stage], work.caps[stage]
    counts = [order.count(F, 0, low), order.count(B, 0, low), order.count(W, 0, low)]
    used = sum(count * each for count, each in zip(counts, held, strict=True))
    place = low
    while place <= high:
        kind = changed[place]
        if kind and counts[kind] >= counts[kind - 1]:
            return None
        if used + held[kind] > cap:
            # A forward that does not fit the cap needs a W before it, which frees memory.
            later = changed.find(W, place)
            if later < 0 or counts[W] >= counts[B]:
                return None
            changed.insert(place, changed.pop(later))
            high = max(high, later)
            kind = W
        counts[kind] += 1
        used += held[kind]
        place += 1
    return low, changed
