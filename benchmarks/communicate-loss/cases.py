"""The types in which gradients travel, the models and networks, and how much is measured."""

from __future__ import annotations

from dataclasses import dataclass

from _harness.network import Network

FP32, BF16 = "fp32", "bf16"
TYPES = (FP32, BF16)
"""The contestants: gradients travel as they are, or rounded to bf16."""
RANKS = 4

DIGITS, GPT = "digits", "gpt"
MODELS = (DIGITS, GPT)

NETWORKS = (
    Network(name="host-4", title="1 host, 4 ranks", ranks=RANKS),
    Network(name="lab-1g", title="4 hosts, 1 Gbit/s", ranks=RANKS, rate_bps=10**9),
    Network(name="lab-200m", title="4 hosts, 200 Mbit/s", ranks=RANKS, rate_bps=200 * 10**6),
)
COST = "cost"
PARTS = (*MODELS, *(network.name for network in NETWORKS), COST)

GROUP_BYTES = 1 << 20
"""The size of groups of gradients of both contestants, so that no trial is part of a run."""
SIZES_MB = (1, 4, 16)
"""The lengths of fp32 gradients whose conversion is timed."""


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """The numbers of seeds, steps and rounds."""

    seeds: tuple[int, ...]
    """The seeds of the weights and of the order of the data, each a training of its own."""
    digits_steps: int
    gpt_steps: int
    rounds: int
    """The number of turns of each contestant on a network."""
    steps: int
    """The number of timed steps of a turn, after one that is not timed."""
    repeats: int
    """The number of timed conversions of each length."""

    def of(self, model: str) -> int:
        """Return the number of steps of a training of `model`."""
        return self.digits_steps if model == DIGITS else self.gpt_steps


FULL = Lengths(seeds=(0, 1, 2), digits_steps=330, gpt_steps=300, rounds=5, steps=4, repeats=200)
QUICK = Lengths(seeds=(0,), digits_steps=44, gpt_steps=6, rounds=2, steps=1, repeats=30)

CHUNK = 10
"""The number of steps that one contestant takes before the other takes as many."""
LAST = 20
"""The number of the last steps whose mean loss is the loss that a training reaches."""
