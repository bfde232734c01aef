"""The simulator's times of the cells, with a rate and a latency found from two other cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from cases import ITEM_BYTES, LONG, RATE_BPS, SHORT, Cell

from slackline.plan.collective import Collective, generate
from slackline.sim import Fabric, Framing, Host, Operation, simulate_collective

FRAMING = Framing(header_bytes=64, packet_bytes=1448, packet_overhead_bytes=66)
"""TCP over the lab's Ethernet, whose token buckets count no preamble."""
PACKET_BYTES = 1514
ROUNDS = 3
"""The number of times that latency and rate are fitted in turn."""
MOST_LATENCY_PS = 10**11
LEAST_RATE_BPS, MOST_RATE_BPS = RATE_BPS // 10, RATE_BPS * 2


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The two figures of the network that the simulator uses."""

    rate_bps: int
    """The effective rate of a NIC."""
    latency_ps: int
    """The latency of a cable, with the processor time of a message included."""


@cache
def simulated_ps(cell: Cell, calibration: Calibration) -> int:
    """Return the simulated time of a cell's all_reduce."""
    plan = generate(Collective.ALL_REDUCE, cell.plan, cell.hosts)
    host = Host(rates_bps=(calibration.rate_bps,), latency_ps=calibration.latency_ps, cores=2)
    fabric = Fabric(hosts=(host,) * cell.hosts, framing=FRAMING, forwards_after_bytes=PACKET_BYTES)
    return simulate_collective(
        Operation(plan=plan, count=cell.nbytes // ITEM_BYTES, itemsize=ITEM_BYTES), fabric
    ).duration_ps


def calibrate(short_ps: int, long_ps: int) -> Calibration:
    """Return the calibration with which the two cells are simulated as close as possible."""
    found = Calibration(rate_bps=RATE_BPS, latency_ps=0)
    for _ in range(ROUNDS):
        rate_bps, latency_ps = found.rate_bps, found.latency_ps
        latency_ps = _least(
            0,
            MOST_LATENCY_PS,
            lambda value, rate=rate_bps: (
                simulated_ps(SHORT, Calibration(rate_bps=rate, latency_ps=value)) >= short_ps
            ),
        )
        slower_by = _least(
            0,
            MOST_RATE_BPS - LEAST_RATE_BPS,
            lambda value, latency=latency_ps: (
                simulated_ps(LONG, Calibration(rate_bps=MOST_RATE_BPS - value, latency_ps=latency))
                >= long_ps
            ),
        )
        found = Calibration(rate_bps=MOST_RATE_BPS - slower_by, latency_ps=latency_ps)
    return found


def _least(low: int, high: int, enough: Callable[[int], bool]) -> int:
    """Return the least value from `low` to `high` that `enough` accepts, or `high` if none."""
    while low < high:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle + 1
    return low
