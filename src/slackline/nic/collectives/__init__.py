"""The operations of a group on the engine: arguments, plans, posting and completion.

_operations, _checks, _chunks   the checks of an operation, its plan and its memory
_prepared              operations with their plan, which may be posted many times
_plans, _calibration   the plan of each operation, chosen by formulas and measurements
_programs              plans in the form that the engine runs
_shares                long all_reduces in slices, divided by the rates of the ports
_transfer, _completion_queue   handles of posted operations, and waits for many of them
"""

from typing import TYPE_CHECKING

from slackline._lazy import lazily

if TYPE_CHECKING:
    from slackline.nic.collectives._calibration import measure
    from slackline.nic.collectives._completion_queue import NativeCompletionQueue
    from slackline.nic.collectives._operations import Operations, Poster
    from slackline.nic.collectives._plans import (
        DIRECT,
        STAR,
        PlanBook,
        Selected,
    )
    from slackline.nic.collectives._posting import nanoseconds
    from slackline.nic.collectives._programs import compile_program, plan_number, starts
    from slackline.nic.collectives._shares import Sharing
    from slackline.nic.collectives._transfer import DONE, Completions, NativeTransfer
else:
    __getattr__ = lazily(
        __name__,
        {
            "_calibration": "measure",
            "_completion_queue": "NativeCompletionQueue",
            "_operations": "Operations Poster",
            "_plans": "DIRECT STAR PlanBook Selected",
            "_posting": "nanoseconds",
            "_programs": "compile_program plan_number starts",
            "_shares": "Sharing",
            "_transfer": "DONE Completions NativeTransfer",
        },
    )

__all__ = [
    "DIRECT",
    "DONE",
    "STAR",
    "Completions",
    "NativeCompletionQueue",
    "NativeTransfer",
    "Operations",
    "PlanBook",
    "Poster",
    "Selected",
    "Sharing",
    "compile_program",
    "measure",
    "nanoseconds",
    "plan_number",
    "starts",
]
