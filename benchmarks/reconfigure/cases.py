"""The sites, changes and contestants that are measured, the lengths of runs, and the targets."""

from __future__ import annotations

from dataclasses import dataclass

from _harness.network import Network
from torch import distributed as dist

RATE_BPS = 200_000_000


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A backend, and the way in which its groups change their members."""

    name: str
    backend: str
    way: str
    """One of the names in `ways.WAYS`."""


@dataclass(frozen=True, kw_only=True)
class Site(Network):
    """The ranks that change, how many rounds they make, and the time that a change may take."""

    rounds: int
    quick_seconds: float
    """The time after which a quick run starts no further round."""
    most_median_ms: float

    def warm_up(self, contestant: Contestant) -> int:
        """Return the number of all_reduces between the first one after a change and the usual ones.

        A group of slackline with more than four ranks makes most of its links during its first 16
        all_reduces.
        """
        return 16 if contestant.backend == "slackline" and self.ranks > 4 else 1


HOST = Site(
    name="host",
    title="8 ranks on one host",
    ranks=8,
    rounds=100,
    quick_seconds=4.0,
    most_median_ms=20.0,
)
LAB = Site(
    name="lab",
    title="4 hosts at 200 Mbit/s",
    ranks=4,
    rate_bps=RATE_BPS,
    rounds=50,
    quick_seconds=3.0,
    most_median_ms=40.0,
)
SITES = (HOST, LAB)
GROWTH = "growth"
PARTS = (*(site.name for site in SITES), GROWTH)


SLACKLINE = Contestant(name="slackline", backend="slackline", way="reconfigure")
CONTESTANTS = (
    SLACKLINE,
    Contestant(name="slackline, opened anew", backend="slackline", way="opened anew"),
    Contestant(name="gloo", backend="gloo", way="torch")
    if hasattr(dist, "_reconfigure")
    else Contestant(name="gloo, opened anew", backend="gloo", way="opened anew"),
)

LEAVES, JOINS, STAYS = "one leaves", "one joins", "all stay"
CYCLE = (LEAVES, JOINS, STAYS)
"""The changes of a cycle, in their order; a group of all ranks is there before and afterwards."""


def members_after(change: str, ranks: int) -> tuple[int, ...]:
    """Return the ranks that are members after a change: all, or all but the last."""
    return tuple(range(ranks - (change == LEAVES)))


SIZES = {4 << 10: "4 KiB", 1 << 20: "1 MiB"}
"""The bytes of the all_reduces after a change, with their names."""
SHORTEST = min(SIZES)
ITEM_BYTES = 4
"""The size of an element: float32."""
CALLS = 3
"""The usual all_reduces after a change."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Changes that may not leave anything behind."""

    name: str
    cycle: tuple[str, ...]
    """The changes of a cycle, in their order; all ranks are members before and afterwards."""
    first: int
    """The cycles after which caches are full and the allocator has its memory."""
    cycles: int
    """The measured cycles after them."""
    quick_first: int = 3
    quick_cycles: int = 30


SERIES = (
    # An engine remembers the last 512 groups that it has closed, for members that connect later.
    Series(name="all stay", cycle=(STAYS,), first=520, cycles=1000),
    Series(
        name="one leaves and joins again",
        cycle=(LEAVES, JOINS),
        # An engine remembers the last 256 links that it has closed, for peers that call again.
        first=260,
        cycles=500,
        quick_cycles=10,
    ),
)

MOST_P99_MS = 100.0
"""The largest allowed 99th percentile of the times of a kind of change."""
FIRST_OVER_USUAL = 2.0
"""The largest allowed ratio of the first all_reduce after a change to a usual one."""
MOST_BYTES = 1024
"""The largest allowed growth of a process by one change, in bytes.

A process remembers the number of each change, since a number is used once: about 150 bytes. torch
keeps about 300 bytes of each group that it has opened. The allocator of the C library grows in
steps of 128 KiB, which are 131 bytes a change over 1,000 changes. A descriptor of an engine that
stayed would be 1.1 KiB, and a link more.
"""
