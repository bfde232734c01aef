"""Divide the processor time of a training step among the parts of the step and places in the code.

400 small tensors are trained by 2 ranks of this host: alone, with PCCO, and with DDP over both
backends. Processor time and counts are told, since wall time says little about where time goes.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _harness.machine import describe_machine
from _harness.options import parse
from _harness.ranks import Conductor, Ranks
from _harness.report import Report
from _harness.rounds import in_turns
from cases import TINY, Choice, Contestant
from cost_places import shares
from cost_results import CONTESTANTS, Costs
from cost_tools import ToolError, samples, system_calls
from rank import start_cost_rank

RANKS = 2
MOST_SETTLING = 40
"""The questions after which a trial must have ended: 400 steps, and a trial has at most 114."""
TRAINERS = "training-step/contestants.py"
"""The file whose functions are the parts of a step."""


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """The numbers of steps and rounds, and the time of the samples."""

    rounds: int
    warm_up: int
    steps: int
    """The steps of a turn, and those over which system calls are counted."""
    sampled_s: int
    """The seconds of samples of each contestant."""


FULL = Lengths(rounds=7, warm_up=5, steps=20, sampled_s=15)
QUICK = Lengths(rounds=2, warm_up=2, steps=5, sampled_s=4)


def settle(ranks: Conductor, contestant: Contestant) -> Choice:
    """Train until the contestant's trial has ended; return its choice.

    Raises RuntimeError if the trial does not end.
    """
    for _ in range(MOST_SETTLING):
        choice: Choice | None = ranks.ask("settle", contestant)[0]
        if choice is not None:
            return choice
    raise RuntimeError("PCCO's trial has not ended: is SLACKLINE_GROUP_BYTES set?")


def measure(ranks: Conductor, how: Lengths, costs: Costs) -> None:
    """Measure all contestants in turns, and then count and sample each of them."""
    ranks.ask("prepare", TINY)
    for name, contestant in CONTESTANTS.items():
        ranks.ask("add", contestant)
        if contestant.has_trial:
            costs.choices[name] = str(settle(ranks, contestant))
    for number in range(how.rounds):
        for name in in_turns(list(CONTESTANTS), number):
            costs.record(name, ranks.ask("parts", CONTESTANTS[name], how.warm_up, how.steps))
    for name, contestant in CONTESTANTS.items():
        costs.calls[name] = ranks.ask("calls_by_place", contestant)
    for name in CONTESTANTS:
        watch(ranks, name, how, costs)


def watch(ranks: Conductor, name: str, how: Lengths, costs: Costs) -> None:
    """Count a contestant's system calls and sample its stacks, if the tools are there."""
    contestant = CONTESTANTS[name]

    def train(steps: int) -> Callable[[], object]:
        return lambda: ranks.ask("steps", contestant, steps)

    train(how.warm_up)()
    try:
        costs.system_calls[name] = system_calls(ranks.pids, train(how.steps)) / how.steps / RANKS
    except ToolError as error:
        costs.skip("system calls", str(error))
    with tempfile.TemporaryDirectory(prefix="slackline-samples-") as folder:
        file = Path(folder, "samples")
        try:
            lines = samples(ranks.pids[0], how.sampled_s, file, train(how.warm_up))
        except ToolError as error:
            costs.skip("samples", str(error))
        else:
            costs.shares[name] = shares(lines, TRAINERS)


def main() -> None:
    options = parse("the processor time of a step, by part of the step and place in the code")
    costs, machine = Costs(), describe_machine()
    environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with Ranks(start_cost_rank, RANKS, environment=environment) as ranks:
        measure(ranks, QUICK if options.quick else FULL, costs)
        ranks.ask("close")
    report = Report(machine=machine, rows=costs.rows(), targets=[])
    report.print(costs.tables(), options, notes=costs.notes())


if __name__ == "__main__":
    main()
