"""A trial, during training, that finds the fastest of a few plans.

The plans run in turns (see `slackline._turns`). The times of a step come from all ranks with its
measurements, two steps later, so all ranks choose the same plan at the same step.

    step   0                 24   26               44   46
           | 4 plans: 2 turns | wait | the best 2: 3 turns | wait | chosen
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from slackline._turns import Lengths, take_turns
from slackline.plan.pipeline import PlanUpdate

__all__ = ["LENGTHS", "Candidate", "Trial"]

LENGTHS = Lengths(turn=3, turns=(2, 3), finalists=2, later=1)
"""The lengths of a trial. The first step of a turn also checks the graphs of a plan that is new."""


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
        self._steps = self._run([Candidate(update=each) for each in updates])

    def next(self) -> tuple[Candidate, bool]:
        """Return the plan of the next step, and whether the step's time counts.

        Times that count must be in the candidates' `step_ns` two steps after their stage. The
        winner, once there is one, is the plan of all further steps.
        """
        return next(self._steps)

    def _run(self, candidates: list[Candidate]) -> Iterator[tuple[Candidate, bool]]:
        steps = take_turns(candidates, LENGTHS, _medians)
        while True:
            try:
                candidate, counts = next(steps)
            except StopIteration as ended:
                rivals, times = ended.value
                break
            yield candidate or candidates[0], counts
        self.winner = winner = rivals[times.index(min(times))]
        told = [
            f"{each.update.plan.name} {each.median_ns / 1e6:.1f}"
            for each in sorted(candidates, key=lambda each: (each is not winner, each.median_ns))
        ]
        self.reason = f"a trial, ms a step: {', '.join(told)}"
        while True:
            yield winner, False


def _medians(rivals: Sequence[Candidate]) -> Callable[[], list[float]]:
    return lambda: [each.median_ns for each in rivals]
