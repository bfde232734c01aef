"""The order of the steps of a trial, which finds the shortest of several ways to train.

The candidates run in turns of a few steps each, since the load of a shared machine changes, and in
every other round in reverse order. The first step of a turn is not timed: it may wait for what the
candidate before it has left. With many candidates there are two stages. The slower candidates are
dropped after the first; the others run again, and their first times still count. The order depends
only on the number of steps, and all ranks use the same times, so all ranks switch together.

    | 5 candidates: 2 turns of 4 | wait | the best 3: 3 turns | wait | ranked
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["Lengths", "take_turns"]

C = TypeVar("C")
"""A candidate."""


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """The lengths of a trial."""

    turn: int
    """The steps of a turn, with the first one."""
    turns: tuple[int, int]
    """The turns of each candidate in the first and in the second stage."""
    finalists: int
    """The candidates in the second stage. So few have one stage, with the turns of both."""
    later: int
    """The steps from the call of `measure` until the ranks' times are known."""


def take_turns(
    candidates: Sequence[C],
    lengths: Lengths,
    measure: Callable[[Sequence[C]], Callable[[], Sequence[float]]],
) -> Generator[tuple[C | None, bool], None, tuple[list[C], list[float]]]:
    """Yield for each step its candidate, and whether the step is timed; None while times come.

    `measure` is called in the step after a stage, with the candidates of the stage, and returns a
    function that returns their times, the same on all ranks. The generator's value is the
    candidates of the last stage, in the order given, and their times.
    """
    rivals, times = list(candidates), list[float]()
    stages = lengths.turns if len(rivals) > lengths.finalists else (sum(lengths.turns),)
    for turns in stages if len(rivals) > 1 else ():
        if times:
            best = sorted(range(len(rivals)), key=times.__getitem__)[: lengths.finalists]
            rivals = [rivals[k] for k in sorted(best)]
        for turn in range(turns):
            for candidate in rivals if turn % 2 == 0 else reversed(rivals):
                yield candidate, False
                yield from [(candidate, True)] * (lengths.turn - 1)
        yield None, False  # the time of the last step is known in this step
        known = measure(rivals)
        yield from [(None, False)] * lengths.later
        times = list(known())
    return rivals, times
