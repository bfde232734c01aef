"""The durations of a trial's training steps, read while its ranks write their telemetry.

A step is measured in one of three ways, whichever is the first that the script's records permit:

    overlap      from one call of the optimizer's `step` to the next (slackline.overlap)
    pipeline     from the beginning of one step to the beginning of the next (slackline.pipeline)
    operations   the time of a block of operations, where the operations of the first rank repeat
                 with a period; a block has as many whole periods as take 50 ms
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from slackline.cli._tune._period import first_repeats, period
from slackline.history import RecordTail
from slackline.records import (
    Gap,
    GroupOpened,
    Operation,
    Operations,
    PipelineStep,
    Setting,
    StepSummary,
    file_of,
)
from slackline.units import count as counted

__all__ = ["WARM_UP", "Measure", "RankSteps", "TrialSteps"]

WARM_UP = 10
"""The first steps of a trial, which are not measured: connections and memory are warmed up, and the
library measures links and remakes plans."""

_BLOCK_NS = 50_000_000
"""The shortest time of a block of operations."""

_PENDING = 16
"""The last 1/16 of the operations is not searched for a period, since an operation is recorded when
it ends, and earlier ones may still be pending."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """The way in which the steps of a script are measured, the same in all of its trials."""

    kind: str
    """"overlap", "pipeline" or "operations"."""
    block: int = 1
    """For "operations", the number of operations that count as one step."""
    pattern: tuple[tuple[int, ...], ...] = ()
    """For "operations", the signatures of one period. Steps are counted from the place where the
    pattern first repeats, so that the operations of a group's opening are left out."""

    def __str__(self) -> str:
        if self.kind == "operations":
            return f"blocks of {self.block} operations of the first rank"
        return f"steps of slackline.{self.kind}"


class RankSteps:
    """The records of one rank from which the durations of steps are known."""

    def __init__(self, path: Path) -> None:
        self.problems: list[str] = []
        self.settings: dict[str, Setting] = {}
        """The latest record of each setting, by name."""
        self.optimizers: dict[int, list[int]] = {}
        """The durations of each optimizer's steps in nanoseconds."""
        self.pipeline: list[PipelineStep] = []
        self.operations: list[Operation] = []
        """The operations of the script itself, without those of the library, as they ended."""
        self.opened = False
        """Whether the rank has opened a group of slackline."""
        self.tried = False
        """Whether a trial of group sizes by the library has ended."""
        self._begin_ns: int | None = None
        self._tail = RecordTail(path, self.problems.append)

    def update(self) -> None:
        """Read the records that the rank has written since the last call."""
        for record in self._tail.read():
            match record:
                case Setting():
                    self.settings[record.name] = record
                    self.tried |= record.origin == "trial"
                case GroupOpened():
                    self.opened = True
                case StepSummary(plain=True):
                    pass  # Blocks of operations are measured, as in a script without an optimizer.
                case StepSummary():
                    self.optimizers.setdefault(record.optimizer, []).append(record.wall_ns)
                case PipelineStep():
                    self.pipeline.append(record)
                case Operations():
                    self.operations += (each for each in record.rows if not each.internal)
                    if record.lost:
                        self.problems.append(f"no record of {counted(record.lost, 'operation')}")
                case Gap():
                    self.problems.append(
                        f"{counted(record.lost, 'record')} missing: {record.reason}"
                    )
                case _:
                    pass

    def measure(self) -> Measure | None:
        """Return the way in which the steps of this rank can be measured; None if not yet known."""
        if self.optimizers:
            return Measure(kind="overlap")
        if self.pipeline:
            return Measure(kind="pipeline")
        if {"group_bytes", "schedule"} & self.settings.keys():
            return None  # The script will take steps of slackline.overlap or slackline.pipeline.
        found = sorted(self.operations, key=lambda each: each.posted_ns)
        found = found[len(found) // 2 : len(found) - len(found) // _PENDING]
        signatures = [_signature(each) for each in found]
        length = period(signatures)
        if length is None:
            return None
        total_ns = found[-1].posted_ns - found[0].posted_ns
        period_ns = total_ns * length / (len(found) - 1)
        return Measure(
            kind="operations",
            block=length * max(1, round(_BLOCK_NS / period_ns)),
            pattern=tuple(signatures[:length]),
        )

    def durations_ns(self, measure: Measure) -> list[int]:
        """Return the duration of each step so far, in the order of the steps."""
        if measure.kind == "overlap":
            # A script with several optimizers, such as a GAN, is measured by the one that has spent
            # the most time.
            return max(self.optimizers.values(), key=sum, default=[])
        if measure.kind == "pipeline":
            return [after.time_ns - before.time_ns for before, after in pairwise(self.pipeline)]
        begin_ns = self._begin(measure.pattern)
        if begin_ns is None:
            return []
        posted = sorted(each.posted_ns for each in self.operations if each.posted_ns >= begin_ns)
        # The last block may lack operations that are still pending.
        bounds = posted[: -measure.block : measure.block]
        return [after - before for before, after in pairwise(bounds)]

    def _begin(self, pattern: Sequence[tuple[int, ...]]) -> int | None:
        """Return the time at which the first operation of the repeated pattern was posted."""
        if self._begin_ns is None:
            found = sorted(self.operations, key=lambda each: each.posted_ns)
            index = first_repeats([_signature(each) for each in found], pattern)
            self._begin_ns = None if index is None else found[index].posted_ns
        return self._begin_ns


class TrialSteps:
    """The steps of all ranks of a trial, whose telemetry is in `directory`."""

    def __init__(self, directory: Path, ranks: Sequence[int]) -> None:
        self.ranks = [RankSteps(file_of(directory, rank)) for rank in ranks]

    def update(self) -> None:
        """Read the records that the ranks have written since the last call."""
        for rank in self.ranks:
            rank.update()

    def measure(self) -> Measure | None:
        """Return the way in which the script's steps can be measured; None if not yet known."""
        kinds = [rank.measure() for rank in self.ranks]
        stepped = [found for found in kinds if found is not None and found.kind != "operations"]
        if stepped:
            return stepped[0] if len(stepped) == len(kinds) else None
        return kinds[0]

    def count(self, measure: Measure) -> int:
        """Return the number of steps that every rank has taken."""
        return min(len(each) for each in self._durations(measure))

    def step_ns(self, measure: Measure, steps: int) -> float:
        """Return the median duration of `steps` steps after the warm-up, over the ranks.

        Each rank counts by the median of its own steps.
        """
        measured = [each[WARM_UP : WARM_UP + steps] for each in self._durations(measure)]
        return statistics.median(statistics.median(each) for each in measured)

    def problems(self) -> list[str]:
        """Return a sentence for each part of the telemetry that is missing."""
        return [problem for rank in self.ranks for problem in rank.problems]

    def opened(self) -> list[int]:
        """Return the ranks that have opened a group of slackline."""
        return [number for number, rank in enumerate(self.ranks) if rank.opened]

    def has_trial(self) -> bool:
        """Return whether the library finds the size of groups of gradients by its own trial."""
        found = self.settings().get("group_bytes")
        return found is not None and found.origin in ("default", "trial")

    def tried(self) -> bool:
        """Return whether the library has ended its own trial of group sizes on all ranks."""
        return all(rank.tried for rank in self.ranks)

    def settings(self) -> dict[str, Setting]:
        """Return the latest record of each setting of the first rank, by name."""
        return self.ranks[0].settings

    def _durations(self, measure: Measure) -> list[list[int]]:
        # Ranks post different operations, so only the first rank has the blocks of the measure.
        ranks = self.ranks[:1] if measure.kind == "operations" else self.ranks
        return [rank.durations_ns(measure) for rank in ranks]


def _signature(operation: Operation) -> tuple[int, ...]:
    """Return the properties by which operations of different iterations are the same.

    The number of the group is left out: it differs from trial to trial.
    """
    return (
        operation.collective,
        operation.receives,
        operation.peer,
        operation.bytes,
        operation.dtype,
    )
