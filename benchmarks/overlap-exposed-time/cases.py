"""The cases that are measured and the targets of their figures."""

from __future__ import annotations

from dataclasses import dataclass

from _harness.ideal import allreduce_seconds
from floor import Layer

HOSTS = 4
LAYERS = 24
BIAS_COUNT = 1 << 11
"""Elements of float32: 8 KiB."""
FORWARD_SHARE = 1 / 3
"""Of the computation; backward computes two gradients, forward one product."""

DDP_BUCKETS_MB = (25, 2, 5, 10)
"""The first is DDP's default; the best of all is looked for, with `--quick` of the first two."""

FLOOR_RATIO = 1.15
"""At 1 Gbit/s: PCCO's exposed time over the floor, at most."""
FLOOR_DISTANCE = 4.0
"""At 200 Mbit/s: PCCO's exposed time less the floor, at most, in percent of the wire's time."""
REMOVED = 84.27
"""Percent of what another one exposes that PCCO hides, at least, where communication is at most
half of the computation."""
HALF = 0.5


@dataclass(frozen=True, kw_only=True)
class Network:
    """The lab's links, and layers that keep them busy for a while."""

    name: str
    """What `--part` calls it."""
    title: str
    rate: int
    """Bits a second of each host's NIC."""
    weight_count: int
    """Elements of float32 in the weight of each layer."""
    shares: tuple[float, ...]
    """Communication over computation in the cases."""

    @property
    def layer_bytes(self) -> int:
        """Return the bytes of one layer's gradients."""
        return 4 * (self.weight_count + BIAS_COUNT)


FAST = Network(
    name="lab-1g", title="1 Gbit/s", rate=10**9, weight_count=1 << 19, shares=(0.5, 1.0, 2.0)
)
"""Two cores have all their work to do for its four hosts."""
SLOW = Network(
    name="lab-200m",
    title="200 Mbit/s",
    rate=200 * 10**6,
    weight_count=1 << 17,
    shares=(0.5, 1.0),
)
NETWORKS = (FAST, SLOW)


@dataclass(frozen=True, kw_only=True)
class Case:
    """How much is computed for how much communication."""

    network: Network
    share: float
    """Communication over computation; 0 where the computation is real."""

    @property
    def name(self) -> str:
        kind = f"{self.share:g}x" if self.share else "real"
        return f"{kind} at {self.network.title}"

    def layers(self) -> list[Layer]:
        """Return the model's layers, in the order of the forward pass."""
        wire = allreduce_seconds(self.network.layer_bytes, HOSTS, self.network.rate)
        computation = wire / self.share
        layer = Layer(
            forward=computation * FORWARD_SHARE,
            backward=computation * (1 - FORWARD_SHARE),
            wire=wire,
        )
        return [layer] * LAYERS


CASES = tuple(
    Case(network=network, share=share) for network in NETWORKS for share in network.shares
)
REAL = Case(network=FAST, share=0)
