"""The cases that are measured and the targets of their figures."""

from __future__ import annotations

from dataclasses import dataclass

from _harness.ideal import allreduce_seconds
from floor import Layer

HOSTS = 4
RATE = 10**9
LAYERS = 24
WEIGHT_COUNT, BIAS_COUNT = 1 << 19, 1 << 11
"""Elements of float32 in each layer: 2 MiB and 8 KiB."""
LAYER_BYTES = 4 * (WEIGHT_COUNT + BIAS_COUNT)
FORWARD_SHARE = 1 / 3
"""Of the computation; backward computes two gradients, forward one product."""

SHARES = (0.5, 1.0, 2.0)
"""Communication over computation."""

DDP_BUCKETS_MB = (25, 2, 5, 10)
"""The first is DDP's default; the best of all is looked for, with `--quick` of the first two."""

FLOOR_RATIO = 1.15
"""PCCO's exposed time over the floor, at most."""
REMOVED = 84.27
"""Percent of what blocking exposes that PCCO hides, at least, where communication is at most half
of the computation."""
HALF = 0.5


@dataclass(frozen=True, kw_only=True)
class Case:
    """How much is computed for how much communication."""

    share: float
    """Communication over computation; 0 where the computation is real."""

    @property
    def name(self) -> str:
        return f"{self.share:g}x" if self.share else "real"

    def layers(self) -> list[Layer]:
        """Return the model's layers, in the order of the forward pass."""
        wire = allreduce_seconds(LAYER_BYTES, HOSTS, RATE)
        computation = wire / self.share
        layer = Layer(
            forward=computation * FORWARD_SHARE,
            backward=computation * (1 - FORWARD_SHARE),
            wire=wire,
        )
        return [layer] * LAYERS


CASES = tuple(Case(share=share) for share in SHARES)
REAL = Case(share=0)
