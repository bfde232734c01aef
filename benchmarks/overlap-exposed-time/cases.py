"""The cases that are measured, and the targets of their figures."""

from __future__ import annotations

from dataclasses import dataclass

from _harness.ideal import allreduce_seconds
from floor import Layer

HOSTS = 4
LAYERS = 24
BIAS_COUNT = 1 << 11
"""The elements of a bias: 8 KiB of float32."""
FORWARD_SHARE = 1 / 3
"""The share of the forward pass in the computation.

Backward computes two gradients where forward computes one product.
"""

DDP_BUCKETS_MB = (25, 2, 5, 10)
"""The bucket sizes of DDP that are tried, in MB, to find the best; the first is DDP's default.

`--quick` tries the first two.
"""

FLOOR_RATIO = 1.15
"""The largest allowed ratio of PCCO's exposed time to the floor, at 1 Gbit/s.

The floor is the least exposed time that any schedule can reach.
"""
FLOOR_DISTANCE = 4.0
"""The largest allowed distance of PCCO's exposed time from the floor, at 200 Mbit/s.

The unit is percent of the wire's time.
"""
REMOVED = 84.27
"""The smallest allowed percentage of another contestant's exposed time that PCCO hides.

The percentage is required where communication takes at most half as long as computation.
"""
BEST_GLOO = 1.0
"""The largest allowed ratio of PCCO's exposed time to that of DDP over gloo, at 1 Gbit/s.

DDP has the best of the bucket sizes that were tried.
"""
HALF = 0.5


@dataclass(frozen=True, kw_only=True)
class Network:
    """The lab's links, and the size of layers whose gradients keep them busy for a while."""

    name: str
    """The name of this network for `--part`."""
    title: str
    rate: int
    """The rate of each host's NIC, in bits per second."""
    weight_count: int
    """The number of float32 elements in the weight of each layer."""
    shares: tuple[float, ...]
    """The ratios of communication to computation in the cases."""

    @property
    def layer_bytes(self) -> int:
        """The bytes of one layer's gradients."""
        return 4 * (self.weight_count + BIAS_COUNT)


FAST = Network(
    name="lab-1g", title="1 Gbit/s", rate=10**9, weight_count=1 << 19, shares=(0.5, 1.0, 2.0)
)
"""The faster network; its four hosts fully load two cores."""
SLOW = Network(
    name="lab-200m",
    title="200 Mbit/s",
    rate=200 * 10**6,
    weight_count=1 << 17,
    shares=(0.5, 1.0, 2.0),
)
NETWORKS = (FAST, SLOW)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network, and the ratio of communication to computation on it."""

    network: Network
    share: float
    """The ratio of communication to computation; 0 if the computation is real."""

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
