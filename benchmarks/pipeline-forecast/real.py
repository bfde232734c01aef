"""A real training run over a link that is slow periodically, with and without forecasts.

Each rank is a process on this machine; its engine delays messages (`SLACKLINE_FAULTS`). Stages
sleep where they would compute. The two contestants run one after the other, in processes of their
own.
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from _harness.groups import join
from _harness.ranks import Place, Ranks
from _harness.report import Row, Target
from torch import Tensor
from torch.distributed.pipelining import PipelineStage

from slackline.pipeline import Schedule, ScheduleConfig
from slackline.testing.timed_stage import TimedStage

STAGES, MICROBATCHES, WIDTH, CAP = 4, 12, 64, 8
TIME_MS = 5
"""The duration of F, of B and of W."""
PERIOD_S, SLOW_S, DELAY_MS = 10, 3, 30
PERIODS = 16
COUNTED_FROM = 8
"""The period from which iterations are counted: a period must be known to be foretold."""
PIECE = 50
"""The number of iterations that the ranks run between two questions."""
TIMEOUT = timedelta(minutes=5)
MOST_OVER_REACT = 1.01
FORETOLD = "is expected to have"
"""Words of the reasons for plans that are made ahead."""


class Performer:
    """The part of one rank in the pipeline."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._group = join(place, TIMEOUT)

    def prepare(self, forecast: bool) -> None:
        """Make the schedule."""
        rank, each = self._place.rank, TIME_MS * 1_000_000
        stage = TimedStage(WIDTH, forward_ns=each, backward_input_ns=each, backward_weight_ns=each)
        self._stage = stage
        part = PipelineStage(stage, rank, STAGES, torch.device("cpu"), group=self._group)
        config = ScheduleConfig(forecast=forecast)
        self._schedule = Schedule(part, MICROBATCHES, _loss, memory=CAP, config=config)

    def train(self, iterations: int) -> list[tuple[int, str]]:
        """Run iterations; return the end in ns and the reason for a new plan of each."""
        rank, found = self._place.rank, []
        x = torch.ones(MICROBATCHES, WIDTH)
        for _ in range(iterations):
            self._stage.weight.grad = None
            self._stage.waits.clear()
            given = (x,) if rank == 0 else ()
            target = x if rank == STAGES - 1 else None
            self._schedule.step(*given, target=target, return_outputs=False)
            found.append((time.monotonic_ns(), self._schedule.records[-1].change))
        return found

    def close(self) -> None:
        """Leave the process groups."""
        self._schedule.close()
        dist.destroy_process_group()


def _loss(out: Tensor, target: Tensor) -> Tensor:
    return (out * target).sum()


def faults() -> str:
    """Return the faults of a run: the last link is slow at the end of each period."""
    return "; ".join(
        f"link {STAGES - 2}-{STAGES - 1} delay {DELAY_MS}ms "
        f"from {(turn + 1) * PERIOD_S - SLOW_S}s for {SLOW_S}s"
        for turn in range(PERIODS)
    )


def rows() -> list[Row]:
    """Run both contestants and return their rows."""
    return [_row(forecast) for forecast in (False, True)]


def _row(forecast: bool) -> Row:
    name = "forecast" if forecast else "react"
    print(f"real: {name}", file=sys.stderr)
    environment = {
        "SLACKLINE_FAULTS": faults(),
        "SLACKLINE_RAILS": "tcp",
        "OMP_NUM_THREADS": "1",
    }
    with Ranks(Performer, STAGES, environment=environment) as ranks:
        ranks.ask("prepare", forecast)
        began_ns = time.monotonic_ns()
        until_ns = began_ns + PERIODS * PERIOD_S * 10**9
        seen: list[tuple[int, str]] = []
        while time.monotonic_ns() < until_ns:
            seen += ranks.ask("train", PIECE)[0]
        ranks.ask("close")
    since_ns = began_ns + COUNTED_FROM * PERIOD_S * 10**9
    counted = [end for end, _ in seen if since_ns <= end < until_ns]
    changes = [change for end, change in seen if change and since_ns <= end < until_ns]
    return Row(
        labels={"part": "real", "contestant": name},
        values={
            "iterations": len(counted),
            "mean_ms": round((counted[-1] - counted[0]) / (len(counted) - 1) / 1e6, 2),
            "plans": len(changes),
            "plans_ahead": sum(FORETOLD in change for change in changes),
        },
    )


def target(found: list[Row] | None) -> Target:
    """Return the target of the real runs."""
    ratio = None
    if found is not None:
        react, forecast = (float(row.values["mean_ms"]) for row in found)
        ratio = round(forecast / react, 4)
    return Target(
        name="real: forecast over react", target=MOST_OVER_REACT, measured=ratio, bound="at most"
    )
