"""Settings of the list-scheduling rule to try, and a descent from the best of them.

The first settings are those that win most often. The purpose of each parameter:

    wait_*        a W that starts just before an announced F or B delays all that depends on it
    in_flight     forwards far ahead of their backwards fill the memory; the best number in flight
                  is a few more than the links' latency needs (trip / cycle)
    kept          postponed W's fill the drain, in which backwards arrive with pauses between them
    pending       postponed W's hold memory that forwards will need
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random

from slackline.plan.pipeline._scenario import Scenario
from slackline.plan.pipeline.orders import MANY, Knobs, Orders, Work, list_schedule, trips

__all__ = ["Found", "descend", "settings"]

_SHARES = (0, 1, 2, 3, 4, 6, 8)
"""Waiting times to try, in quarters of the time of the stage's backward for the weights."""


@dataclass(frozen=True, slots=True)
class Found:
    """A candidate of the search: a setting, the orders that it gives, and their makespan."""

    makespan: int
    knobs: Knobs
    orders: Orders


def settings(scenario: Scenario) -> Iterator[Knobs]:
    """Yield parameters to try: the unmodified rule first, then settings that win most often."""
    plain = Knobs.plain(scenario.stages)
    yield plain
    for row in (
        (2, 4, 0, None, None),
        (4, 4, 0, 1.5, None),
        (2, 2, 1, None, None),
        (0, 4, 2, 1.5, None),
        (4, 2, 0, None, 2),
        (3, 3, 0, 2, None),
        (2, 2, 0, 1.25, 1),
    ):
        yield _knobs(scenario, *row)
    for quota in (None, 1.25, 1.5, 2):
        for pending in (None, 1, 2):
            for kept in (0, 1, 2, 4):
                for wait_f, wait_b in ((0, 0), (2, 2), (4, 4), (2, 4), (4, 0), (0, 4)):
                    yield _knobs(scenario, wait_f, wait_b, kept, quota, pending)


def _knobs(
    scenario: Scenario,
    wait_f: int,
    wait_b: int,
    kept: int,
    quota: float | None,
    pending: int | None,
) -> Knobs:
    """Return parameters of the list-scheduling rule that are the same for all stages.

    Waits are in quarters of the stage's tW. The `quota` limits the microbatches in flight, as a
    number of round trips.
    """
    stages, weight = scenario.stages, scenario.backward_weight_ps
    total = [
        sum(each)
        for each in zip(scenario.forward_ps, scenario.backward_input_ps, weight, strict=True)
    ]
    cycle = max(total)
    in_flight = (MANY,) * stages
    if quota is not None:
        known = trips(scenario).trip_ps
        whole = [
            known[i] + scenario.forward_ps[i] + scenario.backward_input_ps[i] for i in range(stages)
        ]
        in_flight = tuple(1 + int(quota * each / cycle) for each in whole)
    return replace(
        Knobs.plain(stages),
        wait_forward_ps=tuple(wait_f * each // 4 for each in weight),
        wait_backward_ps=tuple(wait_b * each // 4 for each in weight),
        kept=(kept,) * stages,
        in_flight=in_flight,
        pending=(MANY if pending is None else pending,) * stages,
    )


def descend(
    scenario: Scenario,
    work: Work,
    start: Found,
    *,
    rounds: int,
    floor: int,
    random: Random,
    stop: Callable[[], bool],
) -> Found:
    """Change a parameter of one stage or of all, `rounds` times; undo changes for the worse.

    The descent ends early when the makespan reaches `floor` or `stop` returns True.
    """
    best = start
    for _ in range(rounds):
        if best.makespan <= floor or stop():
            break
        knobs = _changed(scenario, best.knobs, random)
        makespan, orders = list_schedule(work, knobs)
        if makespan <= best.makespan:
            best = Found(makespan, knobs, orders)
    return best


def _changed(scenario: Scenario, knobs: Knobs, random: Random) -> Knobs:
    stages, count = scenario.stages, scenario.microbatches
    name = random.choice(_NAMES)
    places = range(stages) if random.random() < 0.3 else (random.randrange(stages),)
    values = list(getattr(knobs, name))
    share, step = random.choice(_SHARES), random.choice((-2, -1, 1, 2))
    for i in places:
        if name == "yield_backward_ps":
            values[i] = share * scenario.forward_ps[i] // 8
        elif name.endswith("_ps"):
            values[i] = share * scenario.backward_weight_ps[i] // 4
        elif name == "kept":
            values[i] = min(max(values[i] + step, 0), count)
        elif name == "warm_up":
            values[i] = 0
        else:
            values[i] = max(1, min(values[i], count + 1) + step)
    return replace(knobs, **{name: tuple(values)})


_NAMES = (
    "in_flight",
    "pending",
    "kept",
    "wait_forward_ps",
    "wait_backward_ps",
    "yield_backward_ps",
)
