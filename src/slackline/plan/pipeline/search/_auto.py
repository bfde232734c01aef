"""The search for the shortest plan within the memory caps, in bounded time.

No rule is the best for every scenario, so many orders are tried and the shortest is kept:

    1. plain readiness, every other schedule that fits the caps, and a list of settings of the rule
    2. a descent from the best settings, one parameter of one stage at a time
    3. annealing of the best orders, one operation at a time (only where orders are short enough)

The resulting plan is therefore never longer than the plan of plain readiness or of any other
schedule with one stage on each rank that fits. The search draws from one seed and measures its work
in operations, not in seconds. The same scenario and effort give the same plan on every machine,
unless `stop` cuts the search short.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from slackline.errors import UsageError
from slackline.plan.pipeline._plan import PipelinePlan, plan_of_orders
from slackline.plan.pipeline._scenario import Scenario
from slackline.plan.pipeline._validate import check
from slackline.plan.pipeline.orders import (
    KINDS,
    Knobs,
    Orders,
    Work,
    adaptra_plan,
    gpipe,
    list_schedule,
    lower_bound_ps,
    one_f_one_b,
    slack_plan,
    zb_h1,
    zb_h2,
    zero_bubble,
)
from slackline.plan.pipeline.search._anneal import anneal, timed
from slackline.plan.pipeline.search._descent import Found, descend, settings
from slackline.units import show_percent, show_time

__all__ = ["AutoPlan", "auto", "ready_plan"]

_LEAST, _SHARE, _MOST = 400_000, 110, 10_000_000
"""The search's budget at effort 1, in timed operations: _SHARE times the operations of the
scenario, within the limits _LEAST and _MOST."""
_ANNEALED = 6_000
"""The largest number of operations for annealing: with more, too few moves fit the budget."""
_FIXED = ("1f1b", "gpipe", "zb-h1", "zb-h2", "zero-bubble", "slack", "adaptra")


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoPlan:
    """The result of `auto`: the plan, its makespan and a lower bound."""

    plan: PipelinePlan
    makespan_ps: int
    lower_bound_ps: int
    """A makespan that no order can beat."""
    reason: str
    """The reason for the choice as a sentence, which logs and web pages show unchanged."""


def ready_plan(scenario: Scenario) -> PipelinePlan:
    """Return the plan in which each stage starts whatever operation is ready, without a search.

    Among ready operations, a stage prefers a backward for the input (B) to a forward (F) to a
    backward for the weights (W). An F must fit the memory cap.
    """
    _, orders = list_schedule(Work.of(scenario), Knobs.plain(scenario.stages))
    return _plan("ready", orders)


def auto(
    scenario: Scenario, *, effort: float = 1.0, stop: Callable[[], bool] | None = None
) -> AutoPlan:
    """Search for the shortest plan with one stage on each rank, within the memory caps.

    `effort` multiplies the search's budget; with math.inf the search goes on until `stop` returns
    True. A plan as short as the lower bound ends the search early. `stop` is polled between
    candidates; named schedules are tried first, whatever `stop` returns. Raises UsageError for an
    effort that is not positive, and for an endless search without `stop`.
    """
    if not effort > 0:
        raise UsageError(f"effort must be positive, not {effort:g}")
    if math.isinf(effort) and stop is None:
        raise UsageError("a search with effort inf needs a function `stop` that ends it")
    search = _Search(scenario, effort, stop or _never)
    search.run()
    best = search.best
    shown = f"auto: {show_time(best.makespan / 1000)} by {search.source}"
    if best.makespan == search.floor:
        reason = f"{shown}; no order is shorter"
    else:
        above = (best.makespan - search.floor) / search.floor
        reason = (
            f"{shown}, the best of {search.tried} candidates, "
            f"at most {show_percent(above)} above the optimum"
        )
    return AutoPlan(
        plan=_plan("auto", best.orders),
        makespan_ps=best.makespan,
        lower_bound_ps=search.floor,
        reason=reason + search.shorter_without_caps(),
    )


class _Search:
    def __init__(self, scenario: Scenario, effort: float, stop: Callable[[], bool]) -> None:
        self.scenario = scenario
        self.work = Work.of(scenario)
        self.floor = lower_bound_ps(scenario)
        self.stop = stop
        self.endless = math.isinf(effort)
        share = min(_SHARE * self.work.operations, _MOST)
        self.budget = int((1 if self.endless else effort) * max(_LEAST, share))
        self.random = Random(0)
        self.tried = 0
        self.too_large: dict[str, PipelinePlan] = {}
        """The named schedules that the memory caps rule out."""
        self.source = "plain readiness"
        self.best = self._listed(Knobs.plain(scenario.stages))

    def run(self) -> None:
        self._fixed()
        anneals = self.work.operations <= _ANNEALED
        found = self._settings(self.budget // (8 if anneals else 3))
        part = self.budget // (8 if anneals else 2)
        for each in found[:2]:
            found.append(self._descend(each, part // 2))
        if anneals:
            for orders in self._starts(found):
                self._anneal(orders, 3 * self.budget // 8)
        while self.endless and not self._done():
            self.budget += self.budget // 2
            if anneals:
                self._anneal(self.best.orders, self.budget)
            else:
                found.append(self._descend(min(found, key=_makespan), self.budget))

    def shorter_without_caps(self) -> str:
        """Return which named schedule is shorter but does not fit the caps; "" if none is."""
        shorter: list[tuple[int, str, PipelinePlan]] = []
        for name, plan in self.too_large.items():
            found = timed(self.work, _orders(plan))
            if found is not None and found.makespan < self.best.makespan:
                shorter.append((found.makespan, name, plan))
        if not shorter:
            return ""
        makespan, name, plan = min(shorter, key=lambda each: each[:2])
        return f"; {name} takes {show_time(makespan / 1000)}, but {check(plan, self.scenario)}"

    def _fixed(self) -> None:
        """Try every named schedule that has one stage on each rank."""
        scenario = self.scenario
        stages, count = scenario.stages, scenario.microbatches
        makers: tuple[Callable[[], PipelinePlan], ...] = (
            lambda: one_f_one_b(stages, count),
            lambda: gpipe(stages, count),
            lambda: zb_h1(stages, count),
            lambda: zb_h2(stages, count),
            lambda: zero_bubble(stages, count),
            lambda: slack_plan(scenario),
            lambda: adaptra_plan(scenario),
        )
        for name, make in zip(_FIXED, makers, strict=True):
            if self.best.makespan <= self.floor:
                return
            self.tried += 1
            plan = make()
            orders = _orders(plan)
            if not _fits(self.work, orders):
                self.too_large[name] = plan
                continue
            found = timed(self.work, orders)
            assert found is not None, "named schedules run to their end"
            knobs = self.best.knobs
            self._take(Found(found.makespan, knobs, orders), f"the order of {name}")

    def _settings(self, budget: int) -> list[Found]:
        """Try parameters of list scheduling within the budget; return the plans, shortest first.

        The budget allows at least eight settings.
        """
        found: list[Found] = []
        most = max(8, budget // self.work.operations)
        for number, knobs in enumerate(settings(self.scenario)):
            if number == most or self._done():
                break
            found.append(self._listed(knobs))
            self._take(found[-1], f"setting {number} of readiness")
        return sorted(found, key=_makespan)

    def _descend(self, start: Found, operations: int) -> Found:
        rounds = operations // self.work.operations
        if self._done():
            return start
        self.tried += rounds
        better = descend(
            self.scenario,
            self.work,
            start,
            rounds=rounds,
            floor=self.floor,
            random=self.random,
            stop=self.stop,
        )
        self._take(better, "a descent over its knobs")
        return better

    def _starts(self, found: Iterable[Found]) -> list[Orders]:
        """Return the best orders, and the next best orders that differ from them."""
        starts = [self.best.orders]
        starts += [each.orders for each in sorted(found, key=_makespan)]
        return [starts[0], *(each for each in starts if each != starts[0])][:2]

    def _anneal(self, orders: Orders, operations: int) -> None:
        if self._done():
            return
        makespan, better, _ = anneal(
            self.work,
            orders,
            operations=operations,
            floor=self.floor,
            random=self.random,
            stop=self.stop,
        )
        self.tried += 1
        self._take(Found(makespan, self.best.knobs, better), "annealing")

    def _listed(self, knobs: Knobs) -> Found:
        self.tried += 1
        makespan, orders = list_schedule(self.work, knobs)
        return Found(makespan, knobs, orders)

    def _take(self, found: Found, source: str) -> None:
        if found.makespan < self.best.makespan:
            self.best, self.source = found, source

    def _done(self) -> bool:
        return self.best.makespan <= self.floor or self.stop()


def _plan(name: str, orders: Orders) -> PipelinePlan:
    return plan_of_orders(name, [[KINDS[code] for code in order] for order in orders])


def _orders(plan: PipelinePlan) -> Orders:
    codes = {kind: code for code, kind in enumerate(KINDS)}
    return [bytearray(codes[each.kind] for each in program) for program in plan.programs]


def _fits(work: Work, orders: Orders) -> bool:
    for order, held, cap in zip(orders, work.held, work.caps, strict=True):
        used = 0
        for code in order:
            used += held[code]
            if used > cap:
                return False
    return True


def _makespan(found: Found) -> int:
    return found.makespan


def _never() -> bool:
    return False
