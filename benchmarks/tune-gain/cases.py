"""The jobs of the benchmark and the lengths of their searches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Case:
    """A script that is tuned on a network."""

    name: str
    script: str
    """The script's file in the folder `jobs`."""
    network: tuple[str, ...]
    """The options of slackline tune for the ranks and the network."""
    environment: Mapping[str, str] = field(default_factory=dict)
    lab: bool = True
    """Whether the network is a lab, which needs root."""
    quick: bool = False
    """Whether a quick run has this job."""


CASES = (
    Case(
        name="overlapped perceptron, lab, 2 hosts at 200 Mbit/s",
        script="overlapped.py",
        network=("--lab", "--hosts", "2", "--rate", "200Mbit"),
    ),
    Case(
        name="200 all_reduces of 4 KiB, 2 ranks over TCP",
        script="many_small.py",
        network=("--ranks", "2"),
        environment={"SLACKLINE_RAILS": "tcp"},
        lab=False,
        quick=True,
    ),
    Case(
        name="pipeline of 2 stages, lab, link delay 20 ms",
        script="pipeline.py",
        network=("--lab", "--hosts", "2", "--fault", "link 0-1 delay 20ms"),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """The lengths of a search."""

    trials: int
    """The most candidates that are tried."""
    steps: int
    """The steps that a trial measures."""
    budget: str


FULL = Lengths(trials=4, steps=30, budget="10min")
QUICK = Lengths(trials=1, steps=10, budget="5min")
