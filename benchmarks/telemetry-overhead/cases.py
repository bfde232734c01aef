"""The cells of the benchmark and the lengths of its turns."""

from __future__ import annotations

from dataclasses import dataclass

RANKS = 2


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A model whose steps are timed with and without telemetry."""

    name: str
    layers: int
    """The number of linear layers, each with a weight and a bias."""
    width: int
    """The rows and columns of a weight."""
    batch: int
    """The rows of a batch."""
    group_bytes: int
    """The bytes of a group of gradients; 0: each gradient is an operation of its own."""


CELLS = (
    Cell(name="few long operations", layers=4, width=512, batch=256, group_bytes=4 << 20),
    Cell(name="many short operations", layers=60, width=64, batch=256, group_bytes=0),
)


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """The times and numbers of steps that are measured."""

    lives: int
    """The number of times that all ranks are started anew."""
    seconds: float
    """The time of the measured turns of one model after one start; whole rounds are measured."""
    least_rounds: int
    """The least number of rounds in that time; both contestants have a turn in each round."""
    steps: int
    """The measured steps of a turn; one step before them is not measured."""
    warm_up: int
    """The number of unmeasured steps before the first turn of a model."""


FULL = Lengths(lives=4, seconds=15, least_rounds=8, steps=8, warm_up=20)
QUICK = Lengths(lives=1, seconds=3, least_rounds=4, steps=4, warm_up=3)
