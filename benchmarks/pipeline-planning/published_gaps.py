"""The scenarios of a published figure, drawn again from the seeds of its artifact.

PipeMorph (arXiv 2504.19232, figure 19) compares its list scheduler with proven optima on 100
scenarios. The artifact has the results but no scenarios; its test draws them from the seed 2025, by
Python's generator the delay of all links, by numpy's the times of the stages. Ten results, of two
settings, are of another run: the drawn scenarios give other times.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slackline.plan.pipeline import PS_PER_MS, Scenario, StageMemory, auto, generate
from slackline.sim import simulate

DATA = Path(__file__).with_name("published_gaps.csv")
SEED = 2025
SETTINGS = ((3, 6), (4, 12), (6, 18), (8, 32))
"""The numbers of stages and of microbatches."""
BASES_MS = (10, 15, 20, 25, 30)
"""The least time of a computation; the largest is twice as long."""
REPEATS = 5
MOST_DELAY_MS = 20
DEVIATION_MS = 2
"""The standard deviation of a stage's times from those of all stages."""
OTHER_RUNS = ((6, 10), (8, 10))
"""The settings (stages, base) whose published results are of another run."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """A scenario with its published figures."""

    rounded: Scenario
    """The scenario with times rounded up to whole milliseconds, as the published scheduler has."""
    exact: Scenario
    """The scenario with times that are not rounded, as the published optimum has."""
    base_ms: int
    optimum_ms: float
    """The shortest time that the published solver found in 30 s."""
    published_ms: float
    """The time of the published list scheduler."""

    @property
    def drawn_again(self) -> bool:
        """Whether the published result is of the run whose seeds the artifact has."""
        return (self.rounded.stages, self.base_ms) not in OTHER_RUNS

    @property
    def published_gap(self) -> float:
        """The published scheduler's time above the optimum, as a share."""
        return self.published_ms / self.optimum_ms - 1

    def ready_ms(self) -> float:
        """Return the time, of rounded times, in which ranks run whatever is ready."""
        plan = generate("ready", self.rounded)
        return simulate(plan, self.rounded, order="ready").makespan_ps / PS_PER_MS

    def auto_gap(self) -> float:
        """Return the time of a plan of `auto` above the optimum, of times that are not rounded."""
        return auto(self.exact).makespan_ps / PS_PER_MS / self.optimum_ms - 1


def published() -> list[Published]:
    """Return the 100 scenarios in their order."""
    with DATA.open() as file:
        lines = [line for line in file if not line.startswith("#")]
    rows = list(csv.DictReader(lines))
    return [
        Published(
            rounded=_scenario(microbatches, times, delay, math.ceil),
            exact=_scenario(microbatches, times, delay, float),
            base_ms=base_ms,
            optimum_ms=float(row["optimum_ms"]),
            published_ms=float(row["published_ms"]),
        )
        for (microbatches, base_ms, times, delay), row in zip(_drawn(), rows, strict=True)
    ]


def _drawn() -> Iterator[tuple[int, int, list[list[float]], float]]:
    """Draw microbatches, base, times of F, B and W, and delay, in the order of the artifact."""
    of_delays, of_times = random.Random(SEED), np.random.RandomState(SEED)
    for stages, microbatches in SETTINGS:
        for base_ms in BASES_MS:
            for _ in range(REPEATS):
                delay_ms = MOST_DELAY_MS * of_delays.random()
                means = of_times.randint(base_ms, 2 * base_ms, 3)
                times = [mean + of_times.normal(0, DEVIATION_MS, stages) for mean in means]
                yield microbatches, base_ms, [each.tolist() for each in times], delay_ms


def _scenario(
    microbatches: int,
    times_ms: list[list[float]],
    delay_ms: float,
    rounded: Callable[[float], float],
) -> Scenario:
    """Return a scenario with one delay on all links and no limit of memory."""

    def in_ps(value_ms: float) -> int:
        return round(rounded(value_ms) * PS_PER_MS)

    forward, backward, weight = (tuple(map(in_ps, each)) for each in times_ms)
    delays_ps = (in_ps(delay_ms),) * (len(forward) - 1)
    return Scenario(
        microbatches=microbatches,
        forward_ps=forward,
        backward_input_ps=backward,
        backward_weight_ps=weight,
        forward_delay_ps=delays_ps,
        backward_delay_ps=delays_ps,
        memory=(StageMemory(),) * len(forward),
    )
