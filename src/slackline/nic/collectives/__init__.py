"""The operations of a group on the engine: arguments, plans, posting and completion.

_operations            checked and prepared operations, which may be posted many times
_plans, _calibration   the plan of each operation, chosen by formulas and measurements
_programs              plans in the form that the engine runs, and the memory of their chunks
_trees                 the plan for sums in a tree: the engine's, an aggregator's, a circuit's
_shares                long all_reduces in slices, divided by the rates of the ports
_transfer              handles of posted operations, and waits for many of them
"""

from typing import TYPE_CHECKING

from slackline._lazy import lazily

if TYPE_CHECKING:
    from slackline.nic.collectives._calibration import measure
    from slackline.nic.collectives._operations import Operations, Poster
    from slackline.nic.collectives._plans import (
        CHAIN,
        DIRECT,
        STAR,
        KnownTimes,
        PlanBook,
        Selected,
        connects_later,
        first_peers,
    )
    from slackline.nic.collectives._programs import compile_program, plan_number, starts
    from slackline.nic.collectives._shares import Sharing
    from slackline.nic.collectives._transfer import (
        DONE,
        Completions,
        NativeCompletionQueue,
        NativeTransfer,
    )
    from slackline.nic.collectives._trees import TreePlan, aggregator_tree
else:
    __getattr__ = lazily(
        __name__,
        {
            "_calibration": "measure",
            "_operations": "Operations Poster",
            "_plans": "CHAIN DIRECT STAR KnownTimes PlanBook Selected connects_later first_peers",
            "_programs": "compile_program plan_number starts",
            "_shares": "Sharing",
            "_trees": "TreePlan aggregator_tree",
            "_transfer": "DONE Completions NativeCompletionQueue NativeTransfer",
        },
    )

__all__ = [
    "CHAIN",
    "DIRECT",
    "DONE",
    "STAR",
    "Completions",
    "KnownTimes",
    "NativeCompletionQueue",
    "NativeTransfer",
    "Operations",
    "PlanBook",
    "Poster",
    "Selected",
    "TreePlan",
    "Sharing",
    "aggregator_tree",
    "compile_program",
    "connects_later",
    "first_peers",
    "measure",
    "plan_number",
    "starts",
]
