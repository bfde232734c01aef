"""A trial, during training, that finds the variant of a step that is shortest.

The first steps warm up. The variants then run in turns (see `_turns`). A small reduction
averages the ranks' times. Its result is read some steps later, so that no rank waits.

    step   0      3                            59        68                    104       113
           | warm | 7 candidates: 2 turns of 4 | average | the best 3: 3 turns | average | chosen
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from slackline.overlap.exchange import Average
from slackline.overlap.reduction.tuning._turns import Lengths, take_turns
from slackline.units import show_bytes, show_percent, show_time

__all__ = ["LENGTHS", "WARM_UP", "Candidate", "Outcome", "Trial", "Variant"]

WARM_UP = 3
"""The steps before the first candidate, in which memory is touched and connections warm up."""
LENGTHS = Lengths(turn=4, turns=(2, 3), finalists=3, later=8)
"""The lengths of a trial. Step times of ranks that share cores vary by a fifth. With the turns of
both stages the choice is on average 1 % slower than the best candidate, with two turns 2 to 3 %.
The averages arrive long before they are used."""
NEARLY = 1.02
"""The factor of the best time within which the candidate with the fewest groups is chosen."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A way to reduce the gradients of a step and to use them."""

    group_bytes: int
    """The most bytes of gradients in one reduction; 0 reduces each gradient alone."""
    deferred: bool = True
    """True: each parameter may be updated when its gradient is reduced, during the next forward.
    False: all parameters are updated together within the optimizer's `step`."""

    def __str__(self) -> str:
        size = (
            "one parameter each"
            if self.group_bytes == 0
            else f"groups of {show_bytes(self.group_bytes)}"
        )
        return size if self.deferred else f"{size} and one update"


@dataclass(kw_only=True)
class Candidate:
    """A variant that a trial measures."""

    variant: Variant
    groups: int
    """The number of its groups."""
    step_ns: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a trial."""

    variant: Variant
    times_ns: Sequence[tuple[Variant, float]]
    """The median step time of each candidate, with the chosen one first.

    The times are averages over the ranks.
    """

    @property
    def reason(self) -> str:
        """The step times of all candidates, with the chosen one first; "the only way" for one."""
        if not self.times_ns:
            return "the only way"
        (_, best_ns), *others = self.times_ns
        told = [f"{variant} {show_time(ns)}" for variant, ns in others]
        why = ""
        if any(ns < best_ns for _, ns in others):
            why = f", within {show_percent(NEARLY - 1)} of the fastest and with the fewest groups"
        return "; ".join([f"{show_time(best_ns)} a step{why}", *told])

    def __str__(self) -> str:
        separator = ":" if self.times_ns else ","
        return f"{self.variant}{separator} {self.reason}"


class Trial:
    """A trial of several variants on one rank; all ranks run it at the same steps."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        average: Average,
        *,
        first: Variant,
    ) -> None:
        """Create a trial of `candidates`; `average` averages their times over the ranks.

        `first` is the variant in the warm-up, and while averages are awaited.
        """
        self.outcome: Outcome | None = None
        self._average = average
        self._first = first
        self._plan = self._steps(candidates)
        self._current: Candidate | None = None
        self._timed = False

    def step(self, elapsed_ns: int) -> Variant:
        """Record a training step's time; return the variant for the next step."""
        if self._current is not None and self._timed:
            self._current.step_ns.append(elapsed_ns)
        self._current, self._timed = next(self._plan, (None, False))
        if self.outcome is not None:
            return self.outcome.variant
        return self._first if self._current is None else self._current.variant

    def _steps(self, candidates: Sequence[Candidate]) -> Iterator[tuple[Candidate | None, bool]]:
        yield from [(None, False)] * WARM_UP
        rivals, times = yield from take_turns(candidates, LENGTHS, self._measure)
        self.outcome = _choose(rivals, times)

    def _measure(self, rivals: Sequence[Candidate]) -> Callable[[], list[float]]:
        return self._average([statistics.median(each.step_ns) for each in rivals])


def _choose(candidates: Sequence[Candidate], times: Sequence[float]) -> Outcome:
    if not times:
        (only,) = candidates
        return Outcome(variant=only.variant, times_ns=())
    best = min(times)
    near = [k for k, each in enumerate(times) if each <= best * NEARLY]
    chosen = min(near, key=lambda k: candidates[k].groups)
    order = [chosen, *(k for k in sorted(range(len(times)), key=times.__getitem__) if k != chosen)]
    return Outcome(
        variant=candidates[chosen].variant,
        times_ns=[(candidates[k].variant, times[k]) for k in order],
    )
