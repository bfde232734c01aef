"""A run from the spans of its reductions alone: traces that do not tell computations apart.

    rank   ...| compute > post | compute > post |..wait..| compute > post | ...
    network              [ all_reduce ]  [ all_reduce ]           [ all_reduce ]
                                                step k ->|<- step k + 1

The time between the end of a step's last reduction and the first post of the next step counts as
computation, as do the times between two posts. Every step waits for all its reductions, as
DistributedDataParallel does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from slackline.errors import UsageError
from slackline.predict._calibrate import calibrate
from slackline.predict._model import covered_ns
from slackline.predict._run import Computation, Group, Link, Run, Step
from slackline.units import count, show_bytes, show_time

__all__ = ["NOTES", "Reduction", "Trace", "run_of_traces", "steps_of_traces"]

_PLAN = "ring"
"""The plan of traces that name none: the one that most libraries use for long messages."""
NOTES = (
    "the trace does not name the plan of its all_reduces, which is taken for a ring",
    "the trace has no latency: the rate alone explains the times of its reductions",
)
"""Phrases on the facts that traces lack."""


class Reduction(NamedTuple):
    """An all_reduce on one rank."""

    start_ns: int
    """The time of the post."""
    end_ns: int
    """The time at which the rank had the result."""
    nbytes: int
    """The size of the buffer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The reductions of one rank, step by step."""

    name: str
    """The file, for messages."""
    begin_ns: int
    """The end of the step before the first step, or the beginning of the trace."""
    steps: tuple[tuple[Reduction, ...], ...]
    """For each step, its reductions in the order of their posts."""
    error_ns: int = 0
    """The largest error of the times, in comparison with other traces."""


def run_of_traces(name: str, traces: Sequence[Trace]) -> Run:
    """Return the calibrated run of the ranks' traces, one rank on each host.

    Raises UsageError as `steps_of_traces` does.
    """
    sizes, steps = steps_of_traces(traces)
    run = Run(
        name=name,
        ranks=len(traces),
        hosts=len(traces),
        groups=tuple(Group(nbytes=nbytes, plan=_PLAN) for nbytes in sizes),
        steps=steps,
        policy="buckets",
        link=Link(rate_bps=1, one_way_ns=0),
        notes=NOTES,
    )
    return calibrate(run)


def steps_of_traces(traces: Sequence[Trace]) -> tuple[tuple[int, ...], tuple[Step, ...]]:
    """Return the sizes of the last step's reductions, and the steps that have these sizes.

    The times of all traces are read from one clock. Raises UsageError that names the trace which
    differs from the first one, or whose times do not overlap those of the others.
    """
    first = traces[0]
    for trace in traces:
        if not trace.steps or not trace.steps[0]:
            raise UsageError(f"{trace.name} has no all_reduce in any step")
        _check_alike(first, trace)
    _check_clocks(traces)
    sizes = tuple(reduction.nbytes for reduction in first.steps[-1])
    steps = tuple(
        _step([_Part.of(trace, number) for trace in traces], len(traces))
        for number, step in enumerate(first.steps)
        if tuple(reduction.nbytes for reduction in step) == sizes
    )
    return sizes, steps


def _check_alike(first: Trace, trace: Trace) -> None:
    """Raise UsageError where a trace has other reductions than the first trace."""
    if len(trace.steps) != len(first.steps):
        raise UsageError(
            f"{trace.name} has {count(len(trace.steps), 'step')}, and {first.name} has "
            f"{len(first.steps)}"
        )
    for number, (mine, theirs) in enumerate(zip(trace.steps, first.steps, strict=True)):
        sizes = [[reduction.nbytes for reduction in step] for step in (mine, theirs)]
        if sizes[0] != sizes[1]:
            raise UsageError(
                f"{trace.name}: the {count(len(sizes[0]), 'all_reduce')} of step {number} have "
                f"{show_bytes(sum(sizes[0]))} in all, and those of {first.name}, {len(sizes[1])}, "
                f"have {show_bytes(sum(sizes[1]))}, or other sizes in their order"
            )


def _check_clocks(traces: Sequence[Trace]) -> None:
    """Raise UsageError where two ranks' spans of one reduction do not overlap.

    A rank has the result only after every rank has begun.
    """
    for number in range(len(traces[0].steps)):
        for group in range(len(traces[0].steps[number])):
            spans = [trace.steps[number][group] for trace in traces]
            late = max(range(len(spans)), key=lambda rank: spans[rank].start_ns)
            early = min(range(len(spans)), key=lambda rank: spans[rank].end_ns)
            error_ns = traces[late].error_ns + traces[early].error_ns
            if spans[late].start_ns > spans[early].end_ns + error_ns:
                raise UsageError(
                    f"{traces[early].name}: all_reduce {group} of step {number} ends "
                    f"{show_time(spans[late].start_ns - spans[early].end_ns)} before it begins "
                    f"in {traces[late].name}: the clocks of the ranks disagree"
                )


class _Part(NamedTuple):
    """A step of one rank: the end of the step before, and the reductions."""

    begin_ns: int
    reductions: tuple[Reduction, ...]

    @classmethod
    def of(cls, trace: Trace, number: int) -> "_Part":
        begin_ns = trace.begin_ns if not number else _end_ns(trace.steps[number - 1])
        return cls(begin_ns, trace.steps[number])

    @property
    def wall_ns(self) -> int:
        return _end_ns(self.reductions) - self.begin_ns

    @property
    def exposed_ns(self) -> int:
        return _end_ns(self.reductions) - self.reductions[-1].start_ns

    def computation(self) -> Computation:
        starts = [self.begin_ns, *(reduction.start_ns for reduction in self.reductions)]
        gaps = [max(0, after - before) for before, after in pairwise(starts)]
        return Computation(before_ns=0, forward_ns=gaps[0], backward_ns=(0, *gaps[1:]), after_ns=0)


def _end_ns(reductions: Sequence[Reduction]) -> int:
    return max(max(reduction.start_ns, reduction.end_ns) for reduction in reductions)


def _step(parts: Sequence[_Part], ranks: int) -> Step:
    busy = [covered_ns((each.start_ns, each.end_ns) for each in part.reductions) for part in parts]
    return Step(
        wall_ns=sum(part.wall_ns for part in parts) // ranks,
        exposed_ns=sum(part.exposed_ns for part in parts) // ranks,
        busy_ns=sum(busy) // ranks,
        ranks=tuple(part.computation() for part in parts),
    )
