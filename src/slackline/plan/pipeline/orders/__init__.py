"""Orders of computations that are made without a search.

_fixed          GPipe, 1F1B, interleaved 1F1B
_list           the list scheduler
_zero_bubble    ZB-H1, ZB-H2, ZB-V
_dual_pipe      DualPipeV
_slack          the delay that each link can have without idle stages; plans with enough slack
_adaptra        Adaptra's order, for comparison
_bound          the lower bound on the time of any order
"""

from slackline.plan.pipeline.orders._adaptra import adaptra_adapted, adaptra_initial, adaptra_plan
from slackline.plan.pipeline.orders._bound import lower_bound_ps, trips
from slackline.plan.pipeline.orders._dual_pipe import dual_pipe_v
from slackline.plan.pipeline.orders._fixed import gpipe, interleaved_1f1b, one_f_one_b
from slackline.plan.pipeline.orders._list import (
    KINDS,
    MANY,
    B,
    F,
    Knobs,
    Orders,
    W,
    Work,
    list_schedule,
)
from slackline.plan.pipeline.orders._slack import (
    LinkSlack,
    expected_extra_ps,
    link_slacks,
    quotas,
    slack_needed,
    slack_plan,
    slacks,
    tolerance_ps,
)
from slackline.plan.pipeline.orders._zero_bubble import zb_h1, zb_h2, zb_v, zero_bubble

__all__ = [
    "KINDS",
    "MANY",
    "B",
    "F",
    "Knobs",
    "LinkSlack",
    "Orders",
    "W",
    "Work",
    "adaptra_adapted",
    "adaptra_initial",
    "adaptra_plan",
    "dual_pipe_v",
    "expected_extra_ps",
    "gpipe",
    "interleaved_1f1b",
    "link_slacks",
    "list_schedule",
    "lower_bound_ps",
    "one_f_one_b",
    "quotas",
    "slack_needed",
    "slack_plan",
    "slacks",
    "tolerance_ps",
    "trips",
    "zb_h1",
    "zb_h2",
    "zb_v",
    "zero_bubble",
]
