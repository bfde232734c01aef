"""The choice of a plan: the cheapest by the cost model, with a sentence that gives the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from slackline.errors import UsageError
from slackline.plan.collective._plan import Collective
from slackline.plan.collective._table import generate, names
from slackline.units import count, show_bytes, show_time

if TYPE_CHECKING:
    from slackline.plan.collective.choice._cost import CostParameters

__all__ = ["Choice", "Order", "choose"]

Order = Literal["rank", "any"]
"""The order of reductions: in "rank" order, all plans give bit-identical results for all sizes."""


class Choice(NamedTuple):
    """The name of the chosen plan and the reason for the choice."""

    name: str
    reason: str
    """The reason as a sentence, which logs and web pages show unchanged."""


def choose(
    collective: int,
    ranks: int,
    nbytes: int,
    order: Order,
    parameters: CostParameters,
    *,
    root: int | None = None,
    order_free: bool = False,
    accumulate_ratio: float = 1,
) -> Choice:
    """Choose the cheapest plan by the cost model; of equally cheap plans, the first in the table.

    `order="rank"` admits only plans that reduce in rank order. The exception is a reduction whose
    result is the same in every order (`order_free`: integers, bitwise operations).
    `accumulate_ratio` has the meaning it has in `estimate`, and counts only where rank order is
    required. The function generates every candidate plan, so callers should call it once for each
    class of sizes. Raises UsageError for an unknown order.
    """
    if order not in ("rank", "any"):
        raise UsageError(f'order must be "rank" or "any", not "{order}"')
    # Here and not above: the plans of most groups are chosen by measured times.
    from slackline.plan.collective.choice._cost import estimate

    bound = order == "rank" and not order_free
    plans = [generate(collective, name, ranks, root) for name in names(collective)]
    kept = [plan for plan in plans if plan.rank_ordered or not bound]
    ratio = accumulate_ratio if bound else 1
    times = {
        plan.name: estimate(plan, nbytes, parameters, accumulate_ratio=ratio).time_ns
        for plan in kept
    }
    first, *others = sorted(times, key=times.__getitem__)
    in_order = " in rank order" if bound and Collective(collective).reduces else ""
    reason = (
        f"{first}: {show_time(times[first])} for {show_bytes(nbytes)} over "
        f"{count(ranks, 'rank')}{in_order}"
    )
    if others:
        reason += "; " + ", ".join(f"{name} {show_time(times[name])}" for name in others)
    return Choice(first, reason)
