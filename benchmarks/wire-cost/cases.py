"""The networks, sizes and contestants that are measured, and the length of each turn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from _harness.ideal import allreduce_seconds
from _harness.network import Network

ITEM_BYTES = 4
"""The size of an element: float32."""
MBIT = 10**6


def _labs(mbit: int, short: str, rate: str) -> tuple[Network, ...]:
    return tuple(
        Network(
            name=f"lab-{short}-{hosts}",
            title=f"{hosts} hosts, {rate}",
            ranks=hosts,
            rate_bps=mbit * MBIT,
        )
        for hosts in (2, 4)
    )


NETWORKS = (
    Network(name="loopback-2", title="loopback, 2 ranks", ranks=2),
    Network(name="loopback-4", title="loopback, 4 ranks", ranks=4),
    *_labs(200, "200m", "200 Mbit/s"),
    *_labs(1000, "1g", "1 Gbit/s"),
    *_labs(5000, "5g", "5 Gbit/s"),
)


@dataclass(frozen=True, kw_only=True)
class Size:
    """An all_reduce of float32 with SUM, of one size."""

    name: str
    label: str
    """The name on the command line."""
    nbytes: int

    @property
    def count(self) -> int:
        """The number of elements."""
        return self.nbytes // ITEM_BYTES


KIB_64 = Size(name="64 KiB", label="64KiB", nbytes=64 << 10)
MIB_1 = Size(name="1 MiB", label="1MiB", nbytes=1 << 20)
MIB_16 = Size(name="16 MiB", label="16MiB", nbytes=16 << 20)
MB_100 = Size(name="100 MB", label="100MB", nbytes=10**8)
SIZES = (KIB_64, MIB_1, MIB_16, MB_100)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """An all_reduce of one size on one network."""

    network: Network
    size: Size

    @property
    def name(self) -> str:
        """The name that `--part` takes, for example "lab-1g-4/16MiB"."""
        return f"{self.network.name}/{self.size.label}"

    @property
    def ideal_s(self) -> float:
        """The shortest time of an operation that the wire allows, in seconds; 0 without a wire."""
        if self.network.rate_bps is None:
            return 0.0
        return allreduce_seconds(self.size.nbytes, self.network.ranks, self.network.rate_bps)

    @property
    def wire_bytes(self) -> int:
        """The bytes that all ranks together have to send for one operation."""
        return 2 * (self.network.ranks - 1) * self.size.nbytes


def cells_of(network: Network) -> list[Cell]:
    """Return the cells (an all_reduce of one size) of one network."""
    return [Cell(network=network, size=size) for size in SIZES]


CELLS = tuple(cell for network in NETWORKS for cell in cells_of(network))
PARTS = (*(network.name for network in NETWORKS), *(cell.name for cell in CELLS))
QUICK_CELLS = ("loopback-2/64KiB", "loopback-2/1MiB", "lab-1g-2/1MiB")


class Contestant(StrEnum):
    """A library and its transport."""

    TCP = "slackline-tcp"
    ANY_ORDER = "slackline-tcp-any"
    """TCP with sums in the order of the fastest plan; between hosts, TCP alone sums in rank order.
    """
    UDP = "slackline-udp"
    SHM = "slackline-shm"
    GLOO = "gloo"
    OPENMPI = "openmpi"
    RING = "ring"
    """The plain ring of ring_allreduce.cc, over TCP."""

    @property
    def rails(self) -> str | None:
        """The value of SLACKLINE_RAILS; None for other libraries."""
        return self.split("-")[1] if self.startswith("slackline-") else None

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that choose slackline's rails and order; empty for other libraries."""
        if self.rails is None:
            return {}
        order = {"SLACKLINE_ORDER": "any"} if self is Contestant.ANY_ORDER else {}
        return {"SLACKLINE_RAILS": self.rails, **order}


QUICK_LAB = (Contestant.TCP, Contestant.GLOO, Contestant.RING)
"""The contestants of a quick run in a lab, where each process loads torch by itself for seconds."""


def available_on(network: Network) -> list[Contestant]:
    """Return the contestants on a network.

    Shared memory only connects ranks of one host. The order of a sum matters between hosts, and
    from three ranks on: two contributions have the same sum in both orders.
    """
    absent = {Contestant.ANY_ORDER} if network.one_host else {Contestant.SHM}
    if network.ranks == 2:
        absent.add(Contestant.ANY_ORDER)
    return [each for each in Contestant if each not in absent]


def left_out(
    cell: Cell, contestant: Contestant, part: str | None, only: Sequence[str], *, quick: bool
) -> str | None:
    """Return the reason why a contestant is not measured on a network; None if it is measured.

    `part` is the name of a network or a cell, and `only` has names of contestants. None and an
    empty sequence stand for all.
    """
    if part not in (None, cell.network.name, cell.name) or (only and contestant not in only):
        return "not asked for"
    # A part or a contestant that was asked for by name is measured in a quick run, too.
    short = cell.name in QUICK_CELLS and (cell.network.one_host or contestant in QUICK_LAB)
    return "left out by --quick" if quick and not (short or part or only) else None


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """The number of rounds, and the lengths of turns and pauses, that are measured of a size."""

    rounds: int
    turn_s: float
    """The total seconds of a turn's operations, unless a single one takes longer."""
    idle_s: float
    """The seconds without work in each round, which measure the machine's own load."""


FULL = Lengths(rounds=5, turn_s=0.4, idle_s=0.2)
QUICK = Lengths(rounds=3, turn_s=0.1, idle_s=0.1)
MOST_CALLS = 5000

WARM_UP_S = 0.1
"""The most seconds of the wire's time for a warm-up, in which idle connections reopen their
windows.
"""
WARM_UP_BYTES = 4 << 20
"""The most bytes that are reduced before the clock starts if there is no wire."""


def calls_for(operation_s: float, turn_s: float) -> int:
    """Return the number of operations in a turn, if one takes `operation_s` seconds."""
    return min(max(round(turn_s / operation_s), 1), MOST_CALLS)


def warm_up_count(cell: Cell) -> int:
    """Return the number of elements of the warm-up operation, at most those of the measured one."""
    if cell.network.rate_bps is None:
        nbytes = WARM_UP_BYTES
    else:
        nbytes = math.ceil(cell.size.nbytes * WARM_UP_S / cell.ideal_s)
    return min(nbytes // ITEM_BYTES, cell.size.count)
