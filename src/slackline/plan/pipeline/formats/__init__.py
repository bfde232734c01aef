"""File formats and message formats of pipeline plans and scenarios.

_scenario   a scenario as JSON
_torch_csv  PyTorch's pipelining CSV
_update     a new plan as bytes, with the times that it was made for
_blocks     blocks of bytes on a pipe
"""

from slackline.plan.pipeline.formats._blocks import read_block, write_block
from slackline.plan.pipeline.formats._scenario import parse_scenario, scenario_from
from slackline.plan.pipeline.formats._torch_csv import from_torch_csv, to_torch_csv
from slackline.plan.pipeline.formats._update import (
    PlanUpdate,
    decode_updates,
    encode_updates,
    scenario_from_numbers,
    scenario_numbers,
)

__all__ = [
    "PlanUpdate",
    "decode_updates",
    "encode_updates",
    "from_torch_csv",
    "parse_scenario",
    "read_block",
    "scenario_from",
    "scenario_from_numbers",
    "scenario_numbers",
    "to_torch_csv",
    "write_block",
]
