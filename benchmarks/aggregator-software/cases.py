"""The sizes and systems that are measured, their targets, and the bounds that the wire sets.

No function here has side effects.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from _harness.ideal import goodput_bps

WORKERS = 4
NODE = WORKERS
"""The number of the aggregation node's host, after the workers' hosts."""
GBIT = 10**9
RATES = {
    "1 Gbit/s": (GBIT, 96 << 10),
    "500 Mbit/s": (GBIT // 2, 48 << 10),
    "200 Mbit/s": (GBIT // 5, 32 << 10),
}
"""The networks by name: the rate of a worker's port in bits per second, and its burst in bytes.

A burst leaves the port at once. Smaller bursts would need timers that two cores cannot serve for
five hosts.
"""
ITEM_BYTES = 4

STAR, STORE, RING, MESH, GLOO = "star", "star, store-and-forward", "ring", "mesh", "gloo"
SYSTEMS = (STAR, STORE, RING, MESH, GLOO)
LEAST_SHARE = 95.0
"""The smallest allowed percentage of the bound of an all_reduce through the node.

The percentage is required for sizes from 1 MiB on.
"""
TARGET_FROM = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Size:
    """The all_reduces of float32 with SUM that are measured for one size."""

    name: str
    nbytes: int
    calls: int
    """The number of calls in a turn of single calls, one after the other."""
    outstanding: int
    """The number of operations in flight at once in a turn of streamed operations."""
    buffers: int
    passes: int

    def less(self) -> Size:
        """Return the same size with fewer calls, for a quick run."""
        return replace(self, calls=max(2, self.calls // 4), passes=1)

    @property
    def count(self) -> int:
        return self.nbytes // ITEM_BYTES


SIZES = (
    Size(name="64 KiB", nbytes=64 << 10, calls=200, outstanding=16, buffers=32, passes=10),
    Size(name="1 MiB", nbytes=1 << 20, calls=40, outstanding=8, buffers=16, passes=4),
    Size(name="16 MiB", nbytes=16 << 20, calls=4, outstanding=4, buffers=8, passes=1),
    Size(name="100 MB", nbytes=10**8, calls=2, outstanding=3, buffers=3, passes=1),
)


def wire_seconds(nbytes: int, rate: int) -> float:
    """Return the seconds that `nbytes` take through a worker's port at TCP's best goodput."""
    return nbytes * 8 / goodput_bps(rate)


def ring_seconds(nbytes: int, rate: int) -> float:
    """Return the shortest time of an all_reduce without a node, in seconds: 2 (n - 1) / n T.

    T is the time of the whole buffer at the rate. The bound holds for every plan of n workers.
    """
    return 2 * (WORKERS - 1) / WORKERS * wire_seconds(nbytes, rate)
