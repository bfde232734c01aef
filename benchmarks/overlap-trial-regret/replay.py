"""The replay of recorded step times: which variant a trial chooses, and what the choice costs.

A recording has rounds. In each round every variant takes some steps in turn, so the times of one
round belong together: what disturbs the machine disturbs all variants of the round. A replay starts
a trial at some step of the recording and lets it run as in training: its step number n falls in
round n // (steps of a round), and takes a time that the variant had in that round.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slackline.overlap.reduction.tuning._trial import Candidate, Trial, Variant

MOST_STEPS = 130
"""The most steps of a trial."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """The recorded step times of one model on some ranks, in ns."""

    name: str
    variants: Sequence[Variant]
    groups: Sequence[int]
    """The number of gradient groups of each variant."""
    rounds: Sequence[Sequence[Sequence[int]]]
    """The step times of each round, by variant."""

    @classmethod
    def of_row(cls, name: str, row: Mapping[str, Any]) -> Series:
        """Return the recording in a row of the benchmark's JSON."""
        count = row["rounds"]
        variants = [key for key in row if key.startswith(("one parameter each", "groups of "))]
        columns = [_in_rounds(row[key], count) for key in variants]
        found = [_variant_of(key) for key in variants]
        # A trial only compares the numbers of groups, and larger groups are fewer.
        sizes = sorted({each.group_bytes for each in found}, reverse=True)
        return cls(
            name=name,
            variants=found,
            groups=[1 + sizes.index(each.group_bytes) for each in found],
            rounds=[[column[turn] for column in columns] for turn in range(count)],
        )

    def typical_ns(self) -> list[float]:
        """Return the median of all step times of each variant."""
        return [
            statistics.median(time for each in self.rounds for time in each[k])
            for k in range(len(self.variants))
        ]


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """The result of one replay."""

    chosen: int
    """The index of the chosen variant."""
    steps: int
    """The number of steps that the trial took."""


def series_of(name: str, results: Mapping[str, Any]) -> Series:
    """Return the recording that a rank has answered."""
    return Series(
        name=name,
        variants=[Variant(group_bytes=size, deferred=each) for size, each in results["variants"]],
        groups=results["groups"],
        rounds=results["rounds"],
    )


def _variant_of(name: str) -> Variant:
    words = name.split()
    size = int(words[2]) << 10 if words[0] == "groups" else 0
    return Variant(group_bytes=size, deferred=not name.endswith("one update"))


def _in_rounds(times: Sequence[int], rounds: int) -> list[list[int]]:
    length = len(times) // rounds
    return [list(times[turn * length : (turn + 1) * length]) for turn in range(rounds)]


def average_of_one(figures: Sequence[float]) -> Callable[[], list[float]]:
    """Return a function that returns `figures`: a trial's average over one rank."""
    return lambda: list(figures)


def replay(series: Series, first_step: int) -> Replayed:
    """Run a trial on recorded step times from `first_step` on."""
    candidates = [
        Candidate(variant=variant, groups=groups)
        for variant, groups in zip(series.variants, series.groups, strict=True)
    ]
    trial = Trial(candidates, average_of_one, first=series.variants[0])
    in_a_round = sum(len(times) for times in series.rounds[0])
    variant, steps = series.variants[0], 0
    while trial.outcome is None:
        place = first_step + steps
        times = series.rounds[place // in_a_round % len(series.rounds)]
        mine = times[series.variants.index(variant)]
        variant = trial.step(mine[place % len(mine)])
        steps += 1
    return Replayed(chosen=series.variants.index(trial.outcome.variant), steps=steps)


def regrets(recordings: Sequence[Series], count: int, seed: int) -> list[float]:
    """Replay `count` trials, each on a recording and from a step drawn at random.

    Returns for each the typical step time of the chosen variant over that of the best one. Raises
    ArithmeticError if a trial takes more than `MOST_STEPS` steps.
    """
    drawn = random.Random(seed)
    typical = {series.name: series.typical_ns() for series in recordings}
    found = []
    for _ in range(count):
        series = drawn.choice(recordings)
        in_a_round = sum(len(times) for times in series.rounds[0])
        result = replay(series, drawn.randrange(in_a_round * len(series.rounds)))
        if result.steps > MOST_STEPS:
            raise ArithmeticError(f"a trial took {result.steps} steps, more than {MOST_STEPS}")
        times = typical[series.name]
        found.append(times[result.chosen] / min(times))
    return found
