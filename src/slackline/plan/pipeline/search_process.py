"""A process that searches for pipeline plans beside a training process.

    python -m slackline.plan.pipeline.search_process

Requests and answers are blocks of `formats`. A request on standard input is a JSON object: the
schedule's name, the effort, the placement, the scenario, the scenario of backwards in one piece or
null, the share of waits for a core, and the reason. The answer on standard output is "+" and the
encoded PlanUpdates that are worth a trial, or "-" and the text of the error if the scenario has no
such plan. The process ends when standard input closes, and ends its search when its parent process
has ended.
"""

import json
import os
import sys

from slackline.errors import UsageError
from slackline.plan.pipeline._rivals import rivals
from slackline.plan.pipeline._table import Options, generate
from slackline.plan.pipeline.formats import (
    PlanUpdate,
    encode_updates,
    read_block,
    scenario_from_numbers,
    write_block,
)

__all__ = ["main"]

_NICER = 10
"""The increment of the process's nice value: the training that runs beside it comes first."""


def answer(request: bytes, parent: int) -> bytes:
    """Search for the plan that `request` asks for; return the answer's bytes.

    The search stops when the process `parent` is no longer this process's parent.
    """
    asked = json.loads(request)
    scenario = scenario_from_numbers(asked["scenario"])
    options = Options(
        effort=asked["effort"],
        placement=tuple(asked["placement"]),
        stop=lambda: os.getppid() != parent,
    )
    reason = asked["reason"]
    whole = None if asked["whole"] is None else scenario_from_numbers(asked["whole"])
    try:
        if asked["schedule"] == "auto":
            found = rivals(scenario, whole, reason, options, core_wait=asked["core_wait"])
        else:
            plan = generate(asked["schedule"], scenario, options)
            found = [PlanUpdate.of(plan, scenario, reason)]
    except UsageError as error:
        return b"-" + str(error).encode()
    return b"+" + encode_updates(found)


def main() -> None:
    """Answer requests until standard input ends."""
    parent = os.getppid()
    os.nice(_NICER)
    while (request := read_block(sys.stdin.buffer)) is not None:
        found = answer(request, parent)
        if os.getppid() != parent:
            return  # The training has ended, so nothing reads the answer.
        write_block(sys.stdout.buffer, found)


if __name__ == "__main__":
    main()
