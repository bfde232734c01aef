"""The steps of slackline.overlap, from the records that it writes for each step."""

from collections.abc import Sequence
from pathlib import Path

from slackline.errors import UsageError
from slackline.history import Alignment
from slackline.predict._model import covered_ns
from slackline.predict._records import RankRecords
from slackline.predict._run import Computation, Step
from slackline.records import StepSummary

__all__ = ["overlapped_steps", "steps_in_common"]


def overlapped_steps(
    ranks: Sequence[RankRecords], numbers: Sequence[int], alignment: Alignment
) -> tuple[Step, ...]:
    """Return the steps of these numbers, with the computations of each rank."""
    return tuple(_step(ranks, number, alignment) for number in numbers)


def steps_in_common(directory: Path, ranks: Sequence[RankRecords]) -> list[int]:
    """Return the last steps of all ranks in which the gradients had the same groups.

    The first of these steps is left out: links, memory and trials settle in it. A step also needs
    its predecessor, whose late waits belong to its time.
    """
    common = sorted(set.intersection(*(set(rank.steps) for rank in ranks)))
    chosen: list[int] = []
    for number in reversed(common):
        layouts = {(rank.steps[number].groups, rank.steps[number].group_bytes) for rank in ranks}
        if len(layouts) > 1 or not ranks[0].steps[number].groups:
            break
        if chosen:
            latest = ranks[0].steps[chosen[-1]]
            if layouts != {(latest.groups, latest.group_bytes)} or number != chosen[-1] - 1:
                break
        chosen.append(number)
    chosen = [number for number in reversed(chosen) if number - 1 in chosen]
    if len(chosen) < 2:
        raise UsageError(
            f"{directory} has {len(chosen) + 1 if chosen else 0} successive steps at its end with "
            "the same groups of gradients on all ranks; at least 3 are needed"
        )
    return chosen


def _step(ranks: Sequence[RankRecords], number: int, alignment: Alignment) -> Step:
    count = len(ranks)
    walls = [rank.steps[number].wall_ns for rank in ranks]
    exposed = [
        rank.late_ns[number - 1] + _early_ns(rank.steps[number], rank.late_ns[number])
        for rank in ranks
    ]
    return Step(
        wall_ns=sum(walls) // count,
        exposed_ns=sum(exposed) // count,
        busy_ns=sum(_busy_ns(rank, number, alignment) for rank in ranks) // count,
        ranks=tuple(_computation(rank, number) for rank in ranks),
    )


def _early_ns(step: StepSummary, late_ns: int) -> int:
    """Return the time for which a step's record counts waits before the call of `step`."""
    return max(0, step.exposed_ns - late_ns)


def _busy_ns(rank: RankRecords, number: int, alignment: Alignment) -> int:
    """Return the time of a step, from call to call, in which the rank had a reduction."""
    step = rank.steps[number]
    end = alignment.from_unix(rank.number, step.time_ns)
    start = end - step.wall_ns
    return covered_ns(
        (max(start, operation.posted_ns), min(end, operation.ended_ns))
        for operation in rank.operations
        if operation.posted_ns < end and operation.ended_ns > start
    )


def _computation(rank: RankRecords, number: int) -> Computation:
    """Return the times for which a rank computed in a step, which its record gives with waits.

    call of step | before | forward, with late waits | backward, with early waits | call
    """
    step = rank.steps[number]
    late_ns = rank.late_ns[number - 1]
    forward_ended = step.wall_ns - step.backward_ns
    before = max(0, forward_ended - step.forward_ns)
    gaps = []
    reached = forward_ended
    for posted in step.group_posted_ns:
        gaps.append(max(0, posted - reached))
        reached = max(reached, posted)
    after = step.wall_ns - reached - _early_ns(step, rank.late_ns[number])
    return Computation(
        before_ns=before,
        forward_ns=max(0, step.forward_ns - late_ns),
        backward_ns=tuple(gaps),
        after_ns=max(0, after),
    )
