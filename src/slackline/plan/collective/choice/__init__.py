"""The choice among plans.

_cost       a plan's estimated time, counted from its instructions
_formula    the same estimates of all_reduce plans by formulas, for many ranks
_choose     the cheapest plan by its estimate
_measured   the choice among plans whose times were measured
"""

from typing import TYPE_CHECKING

from slackline._lazy import lazily

if TYPE_CHECKING:
    from slackline.plan.collective.choice._choose import Choice, Order, choose
    from slackline.plan.collective.choice._cost import CostParameters, Estimate, estimate
    from slackline.plan.collective.choice._formula import expected_ns
    from slackline.plan.collective.choice._measured import Timing, fastest
else:
    __getattr__ = lazily(
        __name__,
        {
            "_choose": "Choice Order choose",
            "_cost": "CostParameters Estimate estimate",
            "_formula": "expected_ns",
            "_measured": "Timing fastest",
        },
    )

__all__ = [
    "Choice",
    "CostParameters",
    "Estimate",
    "Order",
    "Timing",
    "choose",
    "estimate",
    "expected_ns",
    "fastest",
]
