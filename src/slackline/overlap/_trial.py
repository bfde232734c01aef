"""Which groups are the fastest, found by trial while the model trains.

Every candidate runs for a few steps at a time, in turns, since a shared machine is never twice
equally busy; the slower ones go, and the rest run again and keep their first times. What is tried
in a step follows from the number of the step alone, so all ranks switch at the same one. Their
times are averaged by a small reduction that no rank waits for: it takes effect some steps later.

    step   0      3                            43        52                    88        97
           | warm | 5 candidates: 2 turns of 4 | average | the best 3: 3 turns | average | chosen
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from slackline.overlap._rank_averages import Average

__all__ = ["Candidate", "Outcome", "Trial"]

WARM_UP = 3
"""Steps before the first candidate: memory is touched and connections find their pace."""
TURN = 4
"""Steps of a turn; the first is not counted, for it waits for what the last candidate posted."""
TURNS = (2, 3)
"""Turns of each candidate in a stage. Steps of ranks that share cores vary by a fifth: with the
turns of both stages a choice is 1 % slower than the best one on the average; with two, 2 to 3 %."""
FINALISTS = 3
"""Candidates in the second stage. Where there are no more of them to begin with, one stage has the
turns of both."""
LATER = 8
"""Steps from the end of a stage to its effect: its averages are known long before."""
NEARLY = 1.02
"""Of candidates that are so near the best one, the one with the fewest groups is taken."""


@dataclass(kw_only=True)
class Candidate:
    """A cut of the gradients into groups."""

    group_bytes: int
    groups: int
    """How many there are."""
    step_ns: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a trial has found."""

    group_bytes: int
    times_ns: Sequence[tuple[int, float]]
    """Each candidate's group_bytes and median step, averaged over the ranks; the best one first."""

    def __str__(self) -> str:
        if not self.times_ns:
            return f"{_size(self.group_bytes)}, the only way"
        (best, best_ns), *others = self.times_ns
        told = "; ".join(f"{_size(size)} {ns / 1e6:.1f}" for size, ns in others)
        return f"{_size(best)}: {best_ns / 1e6:.1f} ms a step" + (f"; {told}" if told else "")


class Trial:
    """One rank's part. Its times are averaged over the ranks by `average`."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        average: Average,
        *,
        first: int,
    ) -> None:
        """`first`: the group_bytes before the trial, and between its stages."""
        self.outcome: Outcome | None = None
        self._average = average
        self._first = first
        self._plan = self._stages(list(candidates))
        self._current: Candidate | None = None
        self._fresh = True

    def step(self, elapsed_ns: int) -> int:
        """Take the time of the step that has ended; return the group_bytes of the next one."""
        if self._current is not None and not self._fresh:
            self._current.step_ns.append(elapsed_ns)
        before = self._current
        self._current = next(self._plan, None)
        self._fresh = self._current is not before
        if self.outcome is not None:
            return self.outcome.group_bytes
        return self._first if self._current is None else self._current.group_bytes

    def _stages(self, candidates: list[Candidate]) -> Iterator[Candidate | None]:
        yield from [None] * WARM_UP
        times: list[float] = []
        stages = TURNS if len(candidates) > FINALISTS else (sum(TURNS),)
        for turns in stages if len(candidates) > 1 else ():
            if times:
                order = sorted(range(len(candidates)), key=times.__getitem__)
                candidates = [candidates[k] for k in sorted(order[:FINALISTS])]
            for turn in range(turns):
                for candidate in candidates if turn % 2 == 0 else reversed(candidates):
                    yield from [candidate] * TURN
            yield None  # the last time comes with this step
            averages = self._average([statistics.median(each.step_ns) for each in candidates])
            yield from [None] * LATER
            times = averages()
        self.outcome = _choose(candidates, times)


def _choose(candidates: Sequence[Candidate], times: Sequence[float]) -> Outcome:
    if not times:
        (only,) = candidates
        return Outcome(group_bytes=only.group_bytes, times_ns=())
    best = min(times)
    near = [k for k, each in enumerate(times) if each <= best * NEARLY]
    chosen = min(near, key=lambda k: candidates[k].groups)
    order = [chosen, *(k for k in sorted(range(len(times)), key=times.__getitem__) if k != chosen)]
    return Outcome(
        group_bytes=candidates[chosen].group_bytes,
        times_ns=[(candidates[k].group_bytes, times[k]) for k in order],
    )


def _size(group_bytes: int) -> str:
    return "one parameter each" if group_bytes == 0 else f"groups of {group_bytes >> 10} KiB"
