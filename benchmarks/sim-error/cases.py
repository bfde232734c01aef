"""The all_reduces that are measured and simulated."""

from __future__ import annotations

from dataclasses import dataclass

RATE_BPS = 200 * 10**6
"""The rate of each NIC: low enough that the processors of two cores do not count."""
ITEM_BYTES = 4
PLANS = ("ring", "mesh", "reduce-broadcast", "halving-doubling", "direct")
SIZES = (256 << 10, 1 << 20, 4 << 20)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """An all_reduce of one size by one plan, on a number of hosts with one rank each."""

    hosts: int
    plan: str
    nbytes: int

    def __str__(self) -> str:
        """Return a description: "ring, 4 hosts, 1024 KiB"."""
        return f"{self.plan}, {self.hosts} hosts, {self.nbytes / 1024:g} KiB"


SHORT = Cell(hosts=2, plan="ring", nbytes=256)
"""The cell from which the latency is found."""
LONG = Cell(hosts=2, plan="ring", nbytes=4 << 20)
"""The cell from which the rate is found."""
CELLS = tuple(Cell(hosts=4, plan=plan, nbytes=nbytes) for plan in PLANS for nbytes in SIZES)
QUICK_CELLS = tuple(
    Cell(hosts=4, plan=plan, nbytes=1 << 20) for plan in ("ring", "reduce-broadcast")
)
