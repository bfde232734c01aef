"""The measurements on hosts of a lab: all_reduces, training steps, and an aggregation node."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from _harness.ranks import LabRanks
from cases import HOSTS, METHODS, SKIPPED_STEPS, Cell, Effort, Model
from performer import Performer

from slackline.lab import Lab

ENVIRONMENT = {
    "SLACKLINE_ORDER": "any",
    "SLACKLINE_RAILS": "tcp",
    "SLACKLINE_INTERFACE": "eth0",
    "OMP_NUM_THREADS": "1",
}


@dataclass(kw_only=True)
class Calls:
    """The measured calls of an all_reduce."""

    lives_s: list[list[float]] = field(default_factory=list)
    """The seconds of each call, from the last rank's start to the last rank's end, by life."""
    pauses_s: list[float] = field(default_factory=list)
    """The seconds between each rank's call and its next barrier."""

    @property
    def pause_s(self) -> float:
        """The median pause in seconds."""
        return statistics.median(self.pauses_s)


def all_reduces(
    lab: Lab, cells: Iterable[Cell], effort: Effort, **further: str
) -> dict[Cell, Calls]:
    """Return the measured calls of each cell.

    `further` are variables of slackline, named without the prefix SLACKLINE_.
    """
    found: dict[Cell, Calls] = {}
    variables = {f"SLACKLINE_{name}": value for name, value in further.items()}
    for (hosts, plan), group in groupby(cells, key=lambda cell: (cell.hosts, cell.plan)):
        of_plan = list(group)
        for _ in range(effort.lives):
            environment = {**ENVIRONMENT, **variables, "SLACKLINE_PLAN": plan}
            with LabRanks(Performer, lab, environment=environment, hosts=hosts) as ranks:
                for cell in of_plan:
                    spans = ranks.ask("all_reduces", cell.nbytes, effort.calls(cell))
                    calls = found.setdefault(cell, Calls())
                    calls.pauses_s += [pause / 1e9 for rank in spans for pause, _, _ in rank]
                    calls.lives_s.append(
                        [
                            (max(end for *_, end in call) - max(start for _, start, _ in call))
                            / 1e9
                            for call in zip(*spans, strict=True)
                        ]
                    )
                ranks.ask("close")
    return found


def steps(
    lab: Lab, models: Sequence[Model], effort: Effort
) -> dict[tuple[Model, str], list[list[float]]]:
    """Return the seconds of each training step by model and method, by life.

    A step lasts from the end of a backward to the end of the next one, at the last rank.
    """
    found: dict[tuple[Model, str], list[list[float]]] = {}
    for _ in range(effort.lives):
        environment = {**ENVIRONMENT, "SLACKLINE_PLAN": "ring"}
        with LabRanks(Performer, lab, environment=environment, hosts=HOSTS) as ranks:
            for model in models:
                for method in METHODS:
                    ended_ns = ranks.ask("train", model, method, effort.steps)
                    last_ns = [max(each) for each in zip(*ended_ns, strict=True)]
                    spans = [(end - start) / 1e9 for start, end in pairwise(last_ns)]
                    found.setdefault((model, method), []).append(spans[SKIPPED_STEPS - 1 :])
            ranks.ask("close")
    return found
