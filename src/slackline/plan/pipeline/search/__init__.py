"""The search for the shortest plan within the memory caps.

_auto       one stage a rank: the best plan that is found in bounded time
_descent    settings of the list scheduler, and a descent from the best of them
_anneal     moves on the critical path
_shared     several stages a rank
"""

from slackline.plan.pipeline.search._auto import AutoPlan, auto, ready_plan
from slackline.plan.pipeline.search._shared import shared_auto, shared_ready

__all__ = [
    "AutoPlan",
    "auto",
    "ready_plan",
    "shared_auto",
    "shared_ready",
]
