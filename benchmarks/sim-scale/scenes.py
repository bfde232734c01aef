"""The simulations that are measured: collectives frame by frame, and rings of hosts by flows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random

from slackline.plan.collective import Collective, generate, hierarchical
from slackline.sim import (
    Fabric,
    Framing,
    Host,
    Operation,
    simulate_collective,
    simulate_flows,
)

FRAMING = Framing(header_bytes=64, packet_bytes=1448, packet_overhead_bytes=90)


@dataclass(frozen=True)
class Speed:
    """A simulation frame by frame; `events` runs it and returns the number of its events."""

    name: str
    events: Callable[[], int]


@dataclass(frozen=True)
class Shape:
    """A hierarchical all_reduce on hosts that are drawn by a seed."""

    hosts: int
    per_host: int
    seed: int


def _host(rate_bps: int, latency_ps: int) -> Host:
    return Host(
        rates_bps=(rate_bps,),
        latency_ps=latency_ps,
        cores=8,
        memory_bytes_per_second=100 * 10**9,
        memory_latency_ps=300_000,
    )


def _collective(name: str, ranks: int, nbytes: int, *, costs: bool) -> int:
    host = Host(
        rates_bps=(10**10,),
        latency_ps=10**6,
        frame_ps=200_000 if costs else 0,
        reduce_bytes_per_second=20 * 10**9 if costs else None,
    )
    plan = generate(Collective.ALL_REDUCE, name, ranks)
    operation = Operation(plan=plan, count=nbytes // 4, segment_bytes=16 << 10)
    fabric = Fabric(hosts=(host,) * plan.members, framing=FRAMING, forwards_after_bytes=1538)
    return simulate_collective(operation, fabric).events


SPEEDS = (
    Speed("ring, 32 ranks, 128 MiB", partial(_collective, "ring", 32, 128 << 20, costs=False)),
    Speed(
        "ring, 32 ranks, 128 MiB, processors",
        partial(_collective, "ring", 32, 128 << 20, costs=True),
    ),
    Speed("mesh, 32 ranks, 128 MiB", partial(_collective, "mesh", 32, 128 << 20, costs=False)),
    Speed(
        "halving-doubling, 32 ranks, 128 MiB",
        partial(_collective, "halving-doubling", 32, 128 << 20, costs=False),
    ),
)


def shapes(*, quick: bool) -> Iterator[Shape]:
    """Yield the shapes that are compared: equal hosts (seed 0), and hosts drawn at random."""
    for hosts in (4, 16) if quick else (2, 4, 8, 16, 32):
        for per_host in (1, 4) if quick else (1, 2, 4, 8):
            for seed in range(2 if quick else 4):
                yield Shape(hosts, per_host, seed)


def flows_and_frames(shape: Shape) -> tuple[int, int]:
    """Return the time of an all_reduce in picoseconds by flows, and frame by frame."""
    random = Random(f"{shape}")
    usual = _host(100 * 10**9, 1_000_000)
    hosts = [usual] * shape.hosts
    for _ in range(shape.seed):  # the seed is also the number of hosts that differ
        rate_bps = random.choice((25, 50, 100)) * 10**9
        hosts[random.randrange(shape.hosts)] = _host(rate_bps, random.randint(1, 20) * 10**6)
    fabric = Fabric(hosts=tuple(hosts), framing=FRAMING, forwards_after_bytes=1538)
    plan = hierarchical(shape.hosts, shape.per_host)
    operation = Operation(plan=plan, count=plan.ranks * (128 << 10) // 4, segment_bytes=16 << 10)
    flows = simulate_flows(operation, fabric, ranks_per_host=shape.per_host)
    placement = [rank // shape.per_host for rank in range(plan.ranks)]
    frames = simulate_collective(operation, fabric, placement=placement)
    return flows.duration_ps, frames.duration_ps


def smaller(text: str) -> str:
    """Return an experiment of 100,000 ranks with a tenth of its hosts and bytes."""
    for whole, part in (
        ("count = 12500", "count = 1250"),
        ("replicas = 6250", "replicas = 625"),
        ("number = 4711", "number = 471"),
        ("1638400000B", "163840000B"),
        ("409600000B", "40960000B"),
    ):
        text = text.replace(whole, part)
    return text
