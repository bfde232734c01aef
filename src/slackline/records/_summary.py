"""The summary of many optimizer steps as one run, and of the rails that an engine has used."""

import statistics
from collections.abc import Iterable, Mapping

from slackline.records._records import RunSummary, StepSummary

__all__ = ["MedianStep", "Totals", "rails_of", "summarize"]

_SENT = "_frames_sent"
"""The suffix of an engine's counter of frames sent over a rail; the rail's name precedes it."""


class MedianStep:
    """The median of one rank's training steps, each of which may span steps of several optimizers.

    `count` and the median `wall_ns` describe the optimizer that has spent the most time.
    `exposed_ns` is the sum of all optimizers' medians, each weighted by its share of the steps. All
    three are 0 without a step.
    """

    def __init__(self, steps: Iterable[StepSummary]) -> None:
        apart: dict[int, list[StepSummary]] = {}
        for step in steps:
            apart.setdefault(step.optimizer, []).append(step)
        longest = max(apart.values(), key=lambda of: sum(step.wall_ns for step in of), default=[])
        self.count = len(longest)
        self.wall_ns = statistics.median([step.wall_ns for step in longest] or [0])
        self.exposed_ns = sum(
            statistics.median([step.exposed_ns for step in each]) * len(each) / self.count
            for each in apart.values()
        )

    @property
    def share(self) -> float:
        """The exposed part of the step's time, from 0 to 1; 0 without a step."""
        return self.exposed_ns / self.wall_ns if self.wall_ns else 0.0

    @property
    def steps_per_second(self) -> float:
        """The number of such steps a second; 0 without a step."""
        return 1e9 / self.wall_ns if self.wall_ns else 0.0


class Totals:
    """A running sum of one rank's steps, in constant memory."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._steps: dict[int, int] = {}
        self._wall_ns: dict[int, int] = {}
        self._exposed_ns = 0
        self._hidden_ns = 0
        self._detailed_wall_ns: dict[int, int] = {}
        self._optimizer_ns = 0
        self._reduced_bytes = 0

    def add(self, step: StepSummary) -> None:
        """Add one step to the sums."""
        which = step.optimizer
        self._steps[which] = self._steps.get(which, 0) + 1
        self._wall_ns[which] = self._wall_ns.get(which, 0) + step.wall_ns
        self._exposed_ns += step.exposed_ns
        self._hidden_ns += step.hidden_ns or 0
        detailed_ns = step.wall_ns if step.hidden_ns is not None else 0
        self._detailed_wall_ns[which] = self._detailed_wall_ns.get(which, 0) + detailed_ns
        self._optimizer_ns += step.optimizer_ns
        self._reduced_bytes += step.reduced_bytes

    def run(self, rails: tuple[str, ...] = ()) -> RunSummary:
        """Return the summary of the steps so far.

        Several optimizers run side by side. Wall time and number of steps are taken from the
        optimizer with the longest time; all other figures are sums over all optimizers.
        """
        walls = self._wall_ns
        longest = max(walls, key=lambda optimizer: walls[optimizer], default=0)
        return RunSummary(
            rank=self._rank,
            steps=self._steps.get(longest, 0),
            wall_ns=walls.get(longest, 0),
            exposed_ns=self._exposed_ns,
            reduced_bytes=self._reduced_bytes,
            rails=rails,
            hidden_ns=self._hidden_ns,
            detailed_wall_ns=self._detailed_wall_ns.get(longest, 0),
            optimizer_ns=self._optimizer_ns,
        )


def summarize(rank: int, steps: Iterable[StepSummary], rails: tuple[str, ...] = ()) -> RunSummary:
    """Sum up the steps of one rank, like `Totals.run`; steps of other ranks are left out."""
    totals = Totals(rank)
    for step in steps:
        if step.rank == rank:
            totals.add(step)
    return totals.run(rails)


def rails_of(counters: Mapping[str, int]) -> tuple[str, ...]:
    """Return the kinds of rails (network paths) that carried frames, from an engine's counters."""
    return tuple(
        sorted(
            name.removesuffix(_SENT)
            for name, count in counters.items()
            if name.endswith(_SENT) and count
        )
    )
