"""Plans of pipelines: for each rank, the computations in order; schedules, slack and memory.

_instruction.py   F, B, W and BW, and their one-token text
_plan.py          a plan: the programs of all ranks, and the rank of each stage
_scenario.py      times, delays, memory
_replay.py        the start and end times of a plan's instructions
_validate.py      the check that a plan runs to its end within memory, or the first fault in it
_grid.py          a plan printed as a grid
_dispatch.py      the rule by which runtime and simulator choose a rank's next computation
_table.py         the table of schedules: a variant is a row
_cables.py        links between ranks, and the stages whose messages cross them
_rivals.py        the plans that are worth a trial
formats/          JSON, PyTorch's CSV, bytes
orders/           the orders of the literature, list scheduling, slack
search/           the search for the shortest plan
search_process.py   a process that searches for plans beside a training process
"""

from slackline.plan.pipeline._cables import delayed_links, link_count
from slackline.plan.pipeline._dispatch import PATIENCE, Dispatcher, Order, RankProgram
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
from slackline.plan.pipeline._rivals import in_one_piece, rivals
from slackline.plan.pipeline._scenario import PS_PER_MS, Scenario, StageMemory
from slackline.plan.pipeline._table import (
    SCHEDULES,
    Options,
    Schedule,
    generate,
    names,
    placement_of,
)
from slackline.plan.pipeline._validate import Fault, check, validate
from slackline.plan.pipeline.formats import (
    PlanUpdate,
    decode_updates,
    encode_updates,
    from_torch_csv,
    parse_scenario,
    read_block,
    scenario_from,
    scenario_numbers,
    to_torch_csv,
    write_block,
)
from slackline.plan.pipeline.orders import (
    LinkSlack,
    adaptra_adapted,
    adaptra_initial,
    adaptra_plan,
    dual_pipe_v,
    expected_extra_ps,
    gpipe,
    interleaved_1f1b,
    link_slacks,
    lower_bound_ps,
    one_f_one_b,
    quotas,
    slack_needed,
    slack_plan,
    slacks,
    tolerance_ps,
    zb_h1,
    zb_h2,
    zb_v,
    zero_bubble,
)
from slackline.plan.pipeline.search import AutoPlan, auto, ready_plan

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
    "RankProgram",
    "Scenario",
    "Schedule",
    "StageMemory",
    "Timing",
    "adaptra_adapted",
    "adaptra_initial",
    "adaptra_plan",
    "auto",
    "check",
    "decode_updates",
    "delayed_links",
    "dual_pipe_v",
    "duration_ps",
    "encode_updates",
    "expected_extra_ps",
    "from_torch_csv",
    "generate",
    "gpipe",
    "grid",
    "held_after",
    "in_one_piece",
    "interleaved_1f1b",
    "link_count",
    "link_slacks",
    "looped",
    "lower_bound_ps",
    "names",
    "one_each",
    "one_f_one_b",
    "parse_scenario",
    "placement_of",
    "plan_of_orders",
    "planned_waits_ps",
    "quotas",
    "read_block",
    "ready_plan",
    "replay",
    "rivals",
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
