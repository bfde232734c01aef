"""What is measured, what is asked of it, and what the wire allows at best. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from _harness.ideal import goodput_bps

WORKERS = 4
NODE = WORKERS
"""The host after the workers'."""
GBIT = 10**9
RATES = {
    "1 Gbit/s": (GBIT, 96 << 10),
    "500 Mbit/s": (GBIT // 2, 48 << 10),
    "200 Mbit/s": (GBIT // 5, 32 << 10),
}
"""Of a worker's port, and the bytes that may leave it at once: less needs timers that two cores do
not serve for five hosts."""
ITEM_BYTES = 4

STAR, STORE, RING, MESH, GLOO = "star", "star, store-and-forward", "ring", "mesh", "gloo"
SYSTEMS = (STAR, STORE, RING, MESH, GLOO)
LEAST_SHARE = 95.0
"""Percent of the star's own bound, from 1 MiB on."""
TARGET_FROM = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Size:
    """Blocking all_reduces of float32 with SUM."""

    name: str
    nbytes: int
    calls: int
    """In a turn of one at a time."""
    outstanding: int
    """Under way at once in a turn of streamed ones."""
    buffers: int
    passes: int

    def less(self) -> Size:
        """For a quick look."""
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
    """S bytes through a worker's port, at what TCP can get of it."""
    return nbytes * 8 / goodput_bps(rate)


def ring_seconds(nbytes: int, rate: int) -> float:
    """The bound of workers among themselves, whatever the plan: 2 (n - 1) / n S."""
    return 2 * (WORKERS - 1) / WORKERS * wire_seconds(nbytes, rate)
