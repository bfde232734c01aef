"""A trial, during training, that finds the fastest of a few plans.

The plans run in rounds. In a round each plan has a turn of three steps, of which the first is not
timed, and every other round runs in reverse order. The time of a turn is that of its shorter step,
since other programs only lengthen steps. Turns of one round are compared with each other, because
the load of a shared machine is similar in neighbouring steps:

- A plan is dropped once it has lost so many rounds against the best plan that equally fast plans
  would seldom be so far apart (a sign test).
- The trial ends once one plan is left, or once the best one has rarely enough been slower than
  each of the others by more than a few percent, by the same test.

    step   0         12        24                60                      | chosen
           | round 1 | round 2 | ... 4 plans ... | the best 2, in rounds of 6 steps |

The times of a step come from all ranks with its measurements, two steps later, so all ranks drop
and choose the same plans at the same steps.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import comb

from slackline.plan.pipeline import PlanUpdate
from slackline.units import show_time

__all__ = ["CLOSE", "LATER", "MOST_ROUNDS", "TURN", "Candidate", "Trial"]

TURN = 3
"""The steps of a turn. The first also checks the graphs of a plan that is new."""
LATER = 2
"""The steps after which the time of a step is known."""
MOST_ROUNDS = 32
CLOSE = 1.03
"""The ratio of two plans' times up to which the choice of the slower plan is no loss."""
_CHANCE = 0.04
"""The largest probability of an outcome that counts as no chance: four rounds of four have 1/16."""


@dataclass(kw_only=True)
class Candidate:
    """A plan that a trial measures."""

    update: PlanUpdate
    step_ns: list[int] = field(default_factory=list)
    """The times of its timed steps, each on the rank on which the step took longest."""

    @property
    def median_ns(self) -> float:
        """The median of the times so far."""
        return statistics.median(self.step_ns)

    def turns_ns(self) -> list[int]:
        """Return the time of each complete turn, which is that of its shortest timed step."""
        timed = TURN - 1
        whole = len(self.step_ns) // timed
        return [min(self.step_ns[at * timed : (at + 1) * timed]) for at in range(whole)]


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

        Times that count must be in the candidates' `step_ns` two steps later. The winner, once
        there is one, is the plan of all further steps.
        """
        return next(self._steps)

    def _run(self, candidates: list[Candidate]) -> Iterator[tuple[Candidate, bool]]:
        rivals = list(candidates)
        for number in range(MOST_ROUNDS):
            for candidate in rivals if number % 2 == 0 else reversed(rivals):
                yield candidate, False
                yield from [(candidate, True)] * (TURN - 1)
            if number == MOST_ROUNDS - 1:
                yield from [(_best(rivals), False)] * LATER
            rivals, decided = _left(rivals)
            if decided:
                break
        self.winner = winner = _best(rivals)
        told = [
            f"{each.update.plan.name} {show_time(each.median_ns)}"
            for each in sorted(candidates, key=lambda each: (each is not winner, each.median_ns))
        ]
        how = "a trial"
        if any(each.median_ns < winner.median_ns for each in candidates):
            how = "the fastest in most rounds of a trial"
        self.reason = f"{how}, step times: {', '.join(told)}"
        while True:
            yield winner, False


def _rounds(rivals: Sequence[Candidate]) -> list[tuple[int, ...]]:
    """Return the times of the turns of each round that all rivals have completed."""
    return list(zip(*[each.turns_ns() for each in rivals], strict=False))


def _best(rivals: Sequence[Candidate]) -> Candidate:
    """Return the plan with the smallest median of its times relative to the rounds' fastest."""
    rounds = _rounds(rivals)
    if not rounds:
        return rivals[0]
    scores = [
        statistics.median(times[place] / min(times) for times in rounds)
        for place in range(len(rivals))
    ]
    return rivals[scores.index(min(scores))]


def _left(rivals: list[Candidate]) -> tuple[list[Candidate], bool]:
    """Return the plans that may be the fastest, and whether any of them may be chosen already."""
    best = _best(rivals)
    left, decided = [], True
    for each in rivals:
        pairs = list(zip(best.turns_ns(), each.turns_ns(), strict=False))
        losses = sum(mine < theirs for mine, theirs in pairs)
        if each is not best and _seldom(len(pairs), losses):
            continue
        left.append(each)
        close = sum(mine <= CLOSE * theirs for mine, theirs in pairs)
        decided = decided and (each is best or _seldom(len(pairs), close))
    return left, decided or len(left) == 1


def _seldom(count: int, found: int) -> bool:
    """Return whether at least `found` heads in `count` throws of a coin are no chance."""
    return sum(comb(count, k) for k in range(found, count + 1)) <= _CHANCE * (1 << count)
