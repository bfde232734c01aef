"""The steps of a program that tells telemetry of no steps, such as DistributedDataParallel.

    rank 0   | a > b > c >..wait..| a > b > c >..wait..| a >
    rank 1   | a > b > c >.wait...| a > b > c >.wait...| a >
                          pause                 pause

Between two steps is a pause, in which no all_reduce is under way on any rank. A step may have
several pauses. The sizes of the all_reduces repeat from step to step.
"""

from collections.abc import Sequence

from slackline.errors import UsageError
from slackline.history import Alignment
from slackline.predict._records import RankRecords
from slackline.predict._run import Step
from slackline.predict._spans import Reduction, Trace, steps_of_traces

__all__ = ["posted_steps"]

_LEAST_STEPS = 3
_MOST_ENDS = 8
"""The number of pauses, from the end, at which the last step is looked for."""


def posted_steps(
    name: str, ranks: Sequence[RankRecords], alignment: Alignment
) -> tuple[tuple[int, ...], tuple[Step, ...]]:
    """Return the sizes of a step's all_reduces, and the steps.

    Raises UsageError where ranks have other all_reduces than rank 0, where nothing repeats, and
    where clocks disagree.
    """
    series = [_series(rank, alignment) for rank in ranks]
    for rank, each in zip(ranks, series, strict=True):
        if [one.nbytes for one in each] != [one.nbytes for one in series[0]]:
            raise UsageError(
                f"{rank.path} has other all_reduces than {ranks[0].path}: the ranks of a run post "
                "the same ones"
            )
    if not series[0]:
        raise UsageError(f"{name} has no all_reduce: the ranks exchanged no gradients")
    sizes = [one.nbytes for one in series[0]]
    end, period, count = _repetition(sizes, _pauses(series))
    if count < _LEAST_STEPS:
        raise UsageError(
            f"{name}: the all_reduces at its end do not repeat {_LEAST_STEPS} times with a pause "
            "after each time, so that no steps can be told apart"
        )
    first = end - period * count
    groups = [range(start, start + period) for start in range(first, end, period)]
    traces = [
        Trace(
            name=str(rank.path),
            # The first step tells where the second one begins.
            begin_ns=max(each[place].end_ns for place in groups[0]),
            steps=tuple(tuple(each[place] for place in group) for group in groups[1:]),
            error_ns=max(alignment.error_ns(rank.number, one.ended_ns) for one in rank.operations),
        )
        for rank, each in zip(ranks, series, strict=True)
    ]
    return steps_of_traces(traces)


def _series(rank: RankRecords, alignment: Alignment) -> list[Reduction]:
    """Return a rank's all_reduces by the common clock, in the order of their posts."""
    number = rank.number
    return sorted(
        Reduction(
            alignment.unix_ns(number, each.posted_ns),
            alignment.unix_ns(number, each.ended_ns),
            each.bytes,
        )
        for each in rank.operations
    )


def _pauses(series: Sequence[Sequence[Reduction]]) -> list[int]:
    """Return the places of the all_reduces before which all earlier ones have ended on each rank.

    The number of all_reduces is the last place.
    """
    found: list[int] = []
    reached = [0] * len(series)
    for place in range(len(series[0])):
        if all(each[place].start_ns >= end for each, end in zip(series, reached, strict=True)):
            found.append(place)
        reached = [max(each[place].end_ns, end) for each, end in zip(series, reached, strict=True)]
    return [*found, len(series[0])]


def _repetition(sizes: Sequence[int], pauses: Sequence[int]) -> tuple[int, int, int]:
    """Return the end of the steps, the number of all_reduces in a step, and the number of steps.

    Steps are parts of equal sizes, one after the other, each between two pauses. The result covers
    as many all_reduces as possible, with steps as short as possible. At the end of the program some
    all_reduces may follow the last step. The result is (0, 1, 0) where nothing repeats.
    """
    quiet = set(pauses)
    best, best_place = (0, 0), (0, 1, 0)
    for end in pauses[-_MOST_ENDS:]:
        for period in range(1, end // _LEAST_STEPS + 1):
            last = sizes[end - period : end]
            count, start = 0, end - period
            while start >= 0 and start in quiet and sizes[start : start + period] == last:
                count, start = count + 1, start - period
            if count >= _LEAST_STEPS and (count * period, -period) > best:
                best, best_place = (count * period, -period), (end, period, count)
    return best_place
