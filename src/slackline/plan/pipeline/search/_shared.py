"""The search for a short plan where ranks have several stages each, in any placement.

Orders come from a list-scheduling rule. A rank that is free takes a B (backward for the input)
before an F (forward) before a W (backward for the weights) of any of its stages. Parameters of each
stage change the rule, and a descent changes one parameter at a time. The search measures its work
in operations, so the same scenario and effort give the same plan on every machine.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from random import Random

from slackline.errors import UsageError
from slackline.plan.pipeline._instruction import Instruction
from slackline.plan.pipeline._plan import PipelinePlan
from slackline.plan.pipeline._replay import walk
from slackline.plan.pipeline._scenario import Scenario
from slackline.plan.pipeline._validate import check
from slackline.plan.pipeline.orders import (
    KINDS,
    MANY,
    B,
    F,
    W,
    Work,
    dual_pipe_v,
    interleaved_1f1b,
    lower_bound_ps,
    trips,
    zb_v,
)

__all__ = ["shared_auto", "shared_ready"]

_LEAST, _SHARE, _MOST = 200_000, 60, 5_000_000
"""The search's budget at effort 1, in operations: _SHARE times the operations of the scenario,
within the limits _LEAST and _MOST."""
_NEVER = 1 << 200
_QUARTERS = (0, 1, 2, 4, 8)
"""Waiting times to try, in quarters of the time of the stage's backward for the weights."""

Order = list[tuple[int, int]]
"""The operations of one rank: (stage, code F, B or W)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """The parameters of the list-scheduling rule, one value for each stage."""

    forward_rank: tuple[int, ...]
    """The order of a rank's stages when several have a ready forward: the lowest is first."""
    backward_rank: tuple[int, ...]
    in_flight: tuple[int, ...]
    """The largest number of microbatches between forward and backward at once."""
    pending: tuple[int, ...]
    """The number of pending backwards for the weights at which a W goes before a forward."""
    wait_ps: tuple[int, ...]
    """The longest wait for a message in flight, instead of starting a backward for the weights."""


@dataclass(frozen=True, slots=True)
class _Found:
    makespan: int
    rule: _Rule
    orders: list[Order]


def shared_ready(scenario: Scenario, placement: Sequence[int]) -> PipelinePlan:
    """Return the plan in which each rank starts whatever is ready, for any placement of stages.

    Among operations of the same kind, the operation of the lower stage comes first.
    """
    rule = _plain(scenario.stages, range(scenario.stages))
    _, orders = _schedule(Work.of(scenario.placed(placement)), placement, rule)
    return _plan("ready", placement, scenario, orders)


def shared_auto(
    scenario: Scenario,
    placement: Sequence[int],
    *,
    effort: float = 1.0,
    stop: Callable[[], bool] | None = None,
) -> PipelinePlan:
    """Search for a short plan with stage i on rank `placement[i]`, within the memory caps.

    The plan is never longer than the plan of `shared_ready`, nor than "interleaved", "zb-v" and
    "dualpipe-v" if these fit the placement and the caps. `effort` multiplies the search's budget;
    with math.inf the search goes on until `stop` returns True. Raises UsageError for an effort that
    is not positive.
    """
    if not effort > 0:
        raise UsageError(f"effort must be positive, not {effort:g}")
    if math.isinf(effort) and stop is None:
        raise UsageError("a search with effort inf needs a function `stop` that ends it")
    stopped = stop or (lambda: False)
    work = Work.of(scenario.placed(placement))
    floor = lower_bound_ps(scenario, placement)
    budget = effort * max(_LEAST, min(_SHARE * work.operations, _MOST))

    def listed(rule: _Rule) -> _Found:
        makespan, orders = _schedule(work, placement, rule)
        return _Found(makespan, rule, orders)

    spent = 0.0
    found: list[_Found] = []
    for rule in _settings(scenario, placement):
        found.append(listed(rule))
        spent += work.operations
        if found[-1].makespan <= floor or (len(found) >= 4 and (spent > budget / 2 or stopped())):
            break
    found.sort(key=lambda each: each.makespan)
    best, random = found[0], Random(0)
    for start, share in zip(found[:2], (0.75, 1.0), strict=False):
        here = start
        while spent < share * budget and best.makespan > floor and not stopped():
            tried = listed(_changed(scenario, placement, here.rule, random))
            spent += work.operations
            if tried.makespan <= here.makespan:
                here = tried
            if here.makespan < best.makespan:
                best = here
    plan = _plan("auto", placement, scenario, best.orders)
    named = [
        (max(max(ends) for ends in walk(other, scenario).end_ps), other)
        for other in _named(scenario, placement)
    ]
    shortest = min(named, key=lambda each: each[0], default=None)
    if shortest is None or best.makespan <= shortest[0]:
        return plan
    return replace(shortest[1], name="auto")


def _named(scenario: Scenario, placement: Sequence[int]) -> Iterator[PipelinePlan]:
    """Yield the schedules of the literature that fit the placement and the caps."""
    stages, count = scenario.stages, scenario.microbatches
    ranks = max(placement) + 1
    makers: tuple[Callable[[], PipelinePlan], ...] = (
        lambda: interleaved_1f1b(stages, count, stages_per_rank=stages // ranks),
        lambda: zb_v(stages, count),
        lambda: dual_pipe_v(stages, count),
    )
    for make in makers:
        try:
            plan = make()
        except UsageError:
            continue  # The schedule does not exist for these numbers of stages and microbatches.
        if plan.placement == tuple(placement) and check(plan, scenario) is None:
            yield plan


def _plain(stages: int, forward_rank: Sequence[int]) -> _Rule:
    return _Rule(
        forward_rank=tuple(forward_rank),
        backward_rank=tuple(range(stages)),
        in_flight=(MANY,) * stages,
        pending=(MANY,) * stages,
        wait_ps=(0,) * stages,
    )


def _settings(scenario: Scenario, placement: Sequence[int]) -> Iterator[_Rule]:
    """Yield parameters to try: the unmodified rule first, preferring shallow or deep stages."""
    stages, weight = scenario.stages, scenario.backward_weight_ps
    times = (scenario.forward_ps, scenario.backward_input_ps, weight)
    loads: dict[int, int] = {}
    for rank, *parts in zip(placement, *times, strict=True):
        loads[rank] = loads.get(rank, 0) + sum(parts)
    cycle, known = max(loads.values()), trips(scenario).trip_ps
    shallow, deep = range(stages), range(stages, 0, -1)
    for quota in (None, 1, 1.5, 2, 3):
        in_flight = (MANY,) * stages
        if quota is not None:
            in_flight = tuple(
                1 + int(quota * (trip + forward + backward) / cycle)
                for trip, forward, backward in zip(
                    known, scenario.forward_ps, scenario.backward_input_ps, strict=True
                )
            )
        for quarters in (0, 2, 4):
            for pending in (MANY, 2):
                for forward_rank in (shallow, deep):
                    yield replace(
                        _plain(stages, forward_rank),
                        in_flight=in_flight,
                        pending=(pending,) * stages,
                        wait_ps=tuple(quarters * each // 4 for each in weight),
                    )


def _changed(scenario: Scenario, placement: Sequence[int], rule: _Rule, random: Random) -> _Rule:
    """Return the rule with a random change of one parameter, of one stage or of all stages."""
    stages, count = scenario.stages, scenario.microbatches
    name = random.choice(("in_flight", "pending", "wait_ps", "forward_rank", "backward_rank"))
    values = list(getattr(rule, name))
    stage = random.randrange(stages)
    if name.endswith("rank"):
        mates = [other for other, rank in enumerate(placement) if rank == placement[stage]]
        other = random.choice(mates)
        values[stage], values[other] = values[other], values[stage]
    else:
        quarters, step = random.choice(_QUARTERS), random.choice((-2, -1, 1, 2))
        for each in range(stages) if random.random() < 0.3 else (stage,):
            if name == "wait_ps":
                values[each] = quarters * scenario.backward_weight_ps[each] // 4
            else:
                values[each] = max(1, min(values[each], count + 1) + step)
    return replace(rule, **{name: tuple(values)})


def _schedule(work: Work, placement: Sequence[int], rule: _Rule) -> tuple[int, list[Order]]:
    """Schedule all operations by the rule; return the makespan and the order of each rank.

    No stage exceeds its memory cap, and the schedule never deadlocks, for the reason that
    `list_schedule` gives: waits end, and each stage admits one activation.
    """
    count, last = work.microbatches, work.stages - 1
    own: list[list[int]] = [[] for _ in range(max(placement) + 1)]
    for stage, rank in enumerate(placement):
        own[rank].append(stage)
    forwards: list[list[int]] = [[] for _ in work.times]
    backwards: list[list[int]] = [[] for _ in work.times]
    forwards[0] = [0] * count
    done = [[0, 0, 0] for _ in work.times]
    used = [0] * work.stages
    orders: list[Order] = [[] for _ in own]
    # A rank's one valid event is at `due`. A waiting rank chooses again at the time `until`, which
    # is -1 for a rank that computes.
    due = [0] * len(own)
    until = [_NEVER] * len(own)
    events = [(0, rank) for rank in range(len(own))]
    makespan = 0
    while events:
        now, rank = heappop(events)
        if due[rank] != now:
            continue
        stage, kind, soon = _choice(work, rule, own[rank], now, done, used, forwards, backwards)
        if kind < 0:
            due[rank] = until[rank] = soon
            if soon < _NEVER:
                heappush(events, (soon, rank))
            continue
        end = now + work.times[stage][kind]
        used[stage] += work.held[stage][kind]
        done[stage][kind] += 1
        orders[rank].append((stage, kind))
        due[rank], until[rank] = end, -1
        heappush(events, (end, rank))
        makespan = max(makespan, end)
        if kind == W or (kind == B and stage == 0):
            continue
        if kind == F:
            to, there = min(stage + 1, last), end + work.forward_delays[stage]
            (forwards if stage < last else backwards)[to].append(there)
        else:
            to, there = stage - 1, end + work.backward_delays[stage]
            backwards[to].append(there)
        receiver = placement[to]
        if there < until[receiver]:
            due[receiver] = until[receiver] = there
            heappush(events, (there, receiver))
    return makespan, orders


def _choice(
    work: Work,
    rule: _Rule,
    stages: Sequence[int],
    now: int,
    done: Sequence[Sequence[int]],
    used: Sequence[int],
    forwards: Sequence[Sequence[int]],
    backwards: Sequence[Sequence[int]],
) -> tuple[int, int, int]:
    """Return the stage and kind of a free rank's next operation at the time `now`.

    The kind is -1 if the rank waits. The third value is the arrival time of the next message.
    """
    ready_b: tuple[int, int] | None = None
    ready_f: tuple[int, int] | None = None
    ready_w: tuple[int, int] | None = None
    soon, crowded, patience = _NEVER, False, _NEVER
    for stage in stages:
        f, b, w = done[stage]
        arrived = backwards[stage]
        if b < len(arrived):
            if arrived[b] <= now:
                ready_b = min(ready_b or (_NEVER, 0), (rule.backward_rank[stage], stage))
            else:
                soon = min(soon, arrived[b])
        fits = used[stage] + work.held[stage][F] <= work.caps[stage]
        arrived = forwards[stage]
        if f < len(arrived) and fits and f - b < rule.in_flight[stage]:
            if arrived[f] <= now:
                ready_f = min(ready_f or (_NEVER, 0), (rule.forward_rank[stage], stage))
            else:
                soon = min(soon, arrived[f])
        if b > w:
            ready_w = min(ready_w or (_NEVER, 0), (w - b, stage))
            crowded = crowded or b - w >= rule.pending[stage]
            patience = min(patience, rule.wait_ps[stage])
    if ready_b is not None:
        return ready_b[1], B, soon
    if ready_f is not None and not (crowded and ready_w is not None):
        return ready_f[1], F, soon
    if ready_w is not None and not (ready_f is None and soon < now + patience):
        return ready_w[1], W, soon
    return -1, -1, soon


def _plan(
    name: str, placement: Sequence[int], scenario: Scenario, orders: Sequence[Order]
) -> PipelinePlan:
    programs = []
    for order in orders:
        counts: dict[tuple[int, int], int] = {}
        program = []
        for stage, kind in order:
            microbatch = counts.get((stage, kind), 0)
            counts[stage, kind] = microbatch + 1
            program.append(Instruction(stage, KINDS[kind], microbatch))
        programs.append(tuple(program))
    return PipelinePlan(
        name=name,
        microbatches=scenario.microbatches,
        placement=tuple(placement),
        programs=tuple(programs),
    )
