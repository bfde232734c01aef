"""The simulator's times of the cases, with a rate and a latency found from two all_reduces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from cases import (
    BUCKET_BYTES,
    BURST_BYTES,
    HOSTS,
    ITEM_BYTES,
    LONG,
    PCCO,
    RATE_BPS,
    SHORT,
    SKIPPED_STEPS,
    Cell,
    Model,
)

from slackline.plan.collective import Collective, generate
from slackline.sim import (
    Fabric,
    Framing,
    Host,
    Layer,
    Operation,
    engine_ahead_bytes,
    simulate_series,
    simulate_training,
)

FRAMING = Framing(header_bytes=64, packet_bytes=1448, packet_overhead_bytes=66)
"""TCP over the lab's Ethernet, whose token buckets count no preamble."""
PACKET_BYTES = 1514
ROUNDS = 3
"""The number of times that latency and rate are fitted in turn."""
MOST_LATENCY_PS = 10**11
LEAST_RATE_BPS, MOST_RATE_BPS = RATE_BPS // 10, RATE_BPS * 2
PS_PER_MS = 10**9
SIMULATED_STEPS = 8
SIMULATED_CALLS = 3
"""The number of simulated calls; the last one counts, since its buckets are those of any call."""
AHEAD_BYTES = engine_ahead_bytes(RATE_BPS)
"""The bytes of a connection that urgent gradients wait behind."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The two figures of the network that the simulator uses."""

    rate_bps: int
    """The effective rate of a NIC."""
    latency_ps: int
    """The latency of a cable, with the processor time of a message included."""


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """The measured calls of a cell that the calibration is found from."""

    time_ps: int
    pause_ps: int
    """The time between a rank's call and its next barrier."""


def fabric(hosts: int, calibration: Calibration) -> Fabric:
    """Return the simulated lab."""
    host = Host(
        rates_bps=(calibration.rate_bps,),
        latency_ps=calibration.latency_ps,
        cores=2,
        burst_bytes=BURST_BYTES,
    )
    return Fabric(hosts=(host,) * hosts, framing=FRAMING, forwards_after_bytes=PACKET_BYTES)


@cache
def simulated_ps(cell: Cell, calibration: Calibration, pause_ps: int = 0) -> int:
    """Return the simulated time of a cell's all_reduce; the aggregator of a star has a host.

    As in the measurement, each call follows another call, a pause and a barrier, in which the token
    buckets of the NICs fill again.
    """
    plan = generate(Collective.ALL_REDUCE, cell.plan, cell.hosts)
    return simulate_series(
        Operation(plan=plan, count=cell.nbytes // ITEM_BYTES, itemsize=ITEM_BYTES),
        fabric(plan.members, calibration),
        calls=SIMULATED_CALLS,
        pause_ps=pause_ps,
    )[-1]


def simulated_step_ps(model: Model, method: str, calibration: Calibration) -> int:
    """Return the simulated time of a training step, from one backward's end to the next one's."""
    plan = generate(Collective.ALL_REDUCE, "ring", HOSTS)
    layers = [
        Layer(
            forward_ps=layer.forward_ms * PS_PER_MS,
            backward_ps=layer.backward_ms * PS_PER_MS,
            gradient_bytes=layer.gradient_bytes,
        )
        for layer in model.layers
    ]
    lab = fabric(HOSTS, calibration)
    if method == PCCO:
        lab = replace(lab, hosts=(replace(lab.hosts[0], ahead_bytes=AHEAD_BYTES),) * HOSTS)
    run = simulate_training(
        layers,
        lab,
        lambda nbytes: Operation(plan=plan, count=nbytes // ITEM_BYTES, itemsize=ITEM_BYTES),
        steps=SIMULATED_STEPS,
        policy="overlap" if method == PCCO else "buckets",
        group_bytes=0 if method == PCCO else BUCKET_BYTES,
    )
    counted = sorted(run.step_ps[SKIPPED_STEPS - 1 :])
    return counted[len(counted) // 2]


def calibrate(short: Fitted, long: Fitted) -> Calibration:
    """Return the calibration with which the two cells are simulated as close as possible."""

    def time_ps(cell: Cell, fitted: Fitted, rate_bps: int, latency_ps: int) -> int:
        given = Calibration(rate_bps=rate_bps, latency_ps=latency_ps)
        return simulated_ps(cell, given, fitted.pause_ps)

    found = Calibration(rate_bps=RATE_BPS, latency_ps=0)
    for _ in range(ROUNDS):
        rate_bps, latency_ps = found.rate_bps, found.latency_ps
        latency_ps = least(
            0,
            MOST_LATENCY_PS,
            lambda value, rate=rate_bps: time_ps(SHORT, short, rate, value) >= short.time_ps,
        )
        slower_by = least(
            0,
            MOST_RATE_BPS - LEAST_RATE_BPS,
            lambda value, latency=latency_ps: (
                time_ps(LONG, long, MOST_RATE_BPS - value, latency) >= long.time_ps
            ),
        )
        found = Calibration(rate_bps=MOST_RATE_BPS - slower_by, latency_ps=latency_ps)
    return found


def least(low: int, high: int, enough: Callable[[int], bool]) -> int:
    """Return the least value from `low` to `high` that `enough` accepts, or `high` if none."""
    while low < high:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle + 1
    return low
