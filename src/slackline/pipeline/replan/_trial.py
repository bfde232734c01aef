"""A trial, during training, that finds the fastest of a few plans.

The plans run in turns of a few steps each, since the load of a shared machine changes. With more
than two plans, the two fastest run again, and their first times still count. The plan of a step
depends only on the number of steps since the trial began. The times of a step come from all ranks
with its measurements, two steps later, so all ranks choose the same plan at the same step.

    step   0                 24   26               44   46
           | 4 plans: 2 turns | wait | the best 2: 3 turns | wait | chosen
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from slackline.plan.pipeline import PlanUpdate

__all__ = ["Candidate", "Trial"]

TURN = 3
"""The steps of a turn. The first is not timed: it checks the graphs of a plan that is new."""
TURNS = (2, 3)
"""The turns of each plan in the first and in the second stage."""
FINALISTS = 2
"""The number of plans in the second stage. A trial of so few has one stage, with all turns."""
LATER = 2
"""The steps from the end of a stage to the use of its times."""


@dataclass(kw_only=True)
class Candidate:
    """A plan that a trial measures."""

    update: PlanUpdate
    step_ns: list[int] = field(default_factory=list)
    """The times of its steps, each on the rank on which the step took longest."""

    @property
    def median_ns(self) -> float:
        """The median of the times so far."""
        return statistics.median(self.step_ns)


class Trial:
    """A trial of plans on one rank; all ranks run it at the same steps."""

    def __init__(self, updates: Sequence[PlanUpdate]) -> None:
        """Create a trial of `updates`, the most promising first."""
        self.winner: Candidate | None = None
        """The fastest plan; None while the trial runs."""
        self.reason = ""
        """The times of all plans, with the chosen one first."""
        self._steps = self._stages([Candidate(update=each) for each in updates])

    def next(self) -> tuple[Candidate, bool]:
        """Return the plan of the next step, and whether the step's time counts.

        Times that count must be in the candidates' `step_ns` at the latest `LATER` steps after
        their stage. The winner, once there is one, is the plan of all further steps.
        """
        return next(self._steps)

    def _stages(self, candidates: list[Candidate]) -> Iterator[tuple[Candidate, bool]]:
        stages = TURNS if len(candidates) > FINALISTS else (sum(TURNS),)
        ranked = candidates
        for stage, turns in enumerate(stages):
            rivals = ranked[:FINALISTS] if stage else ranked
            for turn in range(turns):
                for candidate in rivals if turn % 2 == 0 else reversed(rivals):
                    yield candidate, False
                    yield from [(candidate, True)] * (TURN - 1)
            yield from [(rivals[0], False)] * LATER
            ranked = sorted(rivals, key=lambda each: each.median_ns)
        self.winner = ranked[0]
        told = [
            f"{each.update.plan.name} {each.median_ns / 1e6:.1f}"
            for each in sorted(candidates, key=lambda each: (each is not ranked[0], each.median_ns))
        ]
        self.reason = f"a trial, ms a step: {', '.join(told)}"
        while True:
            yield self.winner, False
