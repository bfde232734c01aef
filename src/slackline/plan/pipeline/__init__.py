"""Plans of pipelines: for each rank, the computations in order; schedules, slack and memory.

_instruction.py   F, B, W and BW, and their one-token text
_plan.py          a plan: the programs of all ranks, and the rank of each stage
_scenario.py _scenario_file.py     times, delays, memory; as JSON
_replay.py        the start and end times of a plan's instructions
_validate.py      the check that a plan runs to its end within memory, or the first fault in it
_grid.py          a plan printed as a grid
_torch_csv.py     PyTorch's pipelining CSV
_dispatch.py      the rule by which runtime and simulator choose a rank's next computation
_fixed.py _zero_bubble.py     the orders of the literature
_adaptra.py       Adaptra's order, for comparison
_slack.py         the delay that a link may have; plans with enough slack
_list.py _search.py _anneal.py _bound.py _auto.py     the search for the shortest plan
_shared.py        the search where ranks have several stages each
_update.py        a new plan as bytes, with the times that it was made for
_search_process.py _blocks.py     a process that searches for plans beside a training process
_table.py         the table of schedules: a variant is a row
"""

from slackline.plan.pipeline._adaptra import adaptra_adapted, adaptra_initial, adaptra_plan
from slackline.plan.pipeline._auto import AutoPlan, auto, ready_plan
from slackline.plan.pipeline._blocks import read_block, write_block
from slackline.plan.pipeline._bound import lower_bound_ps
from slackline.plan.pipeline._dispatch import PATIENCE, Dispatcher, Order
from slackline.plan.pipeline._fixed import gpipe, interleaved_1f1b, one_f_one_b
from slackline.plan.pipeline._grid import grid, timetable
from slackline.plan.pipeline._instruction import Instruction, Kind
from slackline.plan.pipeline._plan import PipelinePlan, looped, one_each, plan_of_orders, vee
from slackline.plan.pipeline._replay import (
    Timing,
    duration_ps,
    held_after,
    planned_waits_ps,
    replay,
)
from slackline.plan.pipeline._scenario import PS_PER_MS, Scenario, StageMemory
from slackline.plan.pipeline._scenario_file import parse_scenario, scenario_from
from slackline.plan.pipeline._slack import (
    LinkSlack,
    expected_extra_ps,
    link_slacks,
    quotas,
    slack_needed,
    slack_plan,
    slacks,
    tolerance_ps,
)
from slackline.plan.pipeline._table import SCHEDULES, Options, Schedule, generate, names
from slackline.plan.pipeline._torch_csv import from_torch_csv, to_torch_csv
from slackline.plan.pipeline._update import PlanUpdate, scenario_numbers
from slackline.plan.pipeline._validate import Fault, check, validate
from slackline.plan.pipeline._zero_bubble import zb_h1, zb_h2, zb_v, zero_bubble

__all__ = [
    "PATIENCE",
    "PS_PER_MS",
    "SCHEDULES",
    "AutoPlan",
    "Dispatcher",
    "Fault",
    "Instruction",
    "Kind",
    "LinkSlack",
    "Options",
    "Order",
    "PipelinePlan",
    "PlanUpdate",
    "Scenario",
    "Schedule",
    "StageMemory",
    "Timing",
    "adaptra_adapted",
    "adaptra_initial",
    "adaptra_plan",
    "auto",
    "check",
    "duration_ps",
    "expected_extra_ps",
    "from_torch_csv",
    "generate",
    "gpipe",
    "grid",
    "held_after",
    "interleaved_1f1b",
    "link_slacks",
    "looped",
    "lower_bound_ps",
    "names",
    "one_each",
    "one_f_one_b",
    "parse_scenario",
    "plan_of_orders",
    "planned_waits_ps",
    "quotas",
    "read_block",
    "ready_plan",
    "replay",
    "scenario_from",
    "scenario_numbers",
    "slack_needed",
    "slack_plan",
    "slacks",
    "timetable",
    "to_torch_csv",
    "tolerance_ps",
    "validate",
    "vee",
    "write_block",
    "zb_h1",
    "zb_h2",
    "zb_v",
    "zero_bubble",
]
