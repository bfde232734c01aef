"""Pipelines whose messages delegates carry, by hand, between ranks that may share a host.

The cases and their simulation. Each case has the parts of `slackline.sim.Delegation`: copies at a
rate, delegates that send one message at a time and may sleep before, NICs that ranks share. The
simulator gets the rate of a NIC from two all_reduces, and one figure, the further time of a copy,
from a pipeline of two stages that is not judged.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby

from _harness.timed_pipeline import Shape, scenario
from predictions import FRAMING, Calibration, least

from slackline.plan.pipeline import PipelinePlan, Scenario, generate
from slackline.sim import Delegation, Network, simulate

COPY_BYTES_PER_SECOND = 100_000_000
"""The rate of copies between a rank's device and its host: 2.6 ms for a message."""
CABLES = 2
"""The cables between two hosts: one to the switch, one from it."""
SCHEDULES = ("1f1b", "zero-bubble")
SLOW_MS = (0, 30)
MOST_COPY_PS = 10**10


@dataclass(frozen=True, kw_only=True)
class Delegated:
    """A pipeline with a stage on each rank, and the ways of its messages."""

    schedule: str
    hosts: tuple[int, ...]
    """The host of each rank."""
    slow_ms: int = 0
    """The time for which a delegate of the last link sleeps before it sends a message."""

    @property
    def shape(self) -> Shape:
        """The pipeline: messages of 256 KiB, which a NIC of 200 Mbit/s sends in 11 ms."""
        stages = len(self.hosts)
        return Shape(stages=stages, microbatches=3 * stages, batch=256)

    @property
    def delegates(self) -> int:
        """The delegates of each link in each direction: enough to hide the sleep."""
        return 1 + self.slow_ms // 10

    def sleep_ns(self, link: int) -> int:
        """Return the sleep of a link's delegates in ns."""
        return self.slow_ms * 1_000_000 if link == self.shape.stages - 2 else 0

    def scenario(self) -> Scenario:
        """Return the stages' times and the links' delays."""
        last = self.shape.stages - 2
        return scenario(self.shape, [(last, self.slow_ms)] if self.slow_ms else (), None)

    def plan(self) -> PipelinePlan:
        """Return the orders of all ranks, which are made for links without delays."""
        return generate(self.schedule, scenario(self.shape, (), None))

    def __str__(self) -> str:
        """Return a description: "1f1b, ranks on hosts 0 0 1 1, last link 30 ms"."""
        where = f"last link {self.slow_ms} ms" if self.slow_ms else "healthy"
        return f"{self.schedule}, ranks on hosts {' '.join(map(str, self.hosts))}, {where}"


FITTED = Delegated(schedule="1f1b", hosts=(0, 1))
"""The pipeline from which the further time of a copy is found."""
DELEGATED = tuple(
    Delegated(schedule=schedule, hosts=hosts, slow_ms=slow_ms)
    for hosts in ((0, 1, 0, 1), (0, 0, 1, 1), (0, 1, 2, 3))
    for schedule in SCHEDULES
    for slow_ms in SLOW_MS
)
QUICK_DELEGATED = DELEGATED[:1]


def by_hosts(cases: Iterable[Delegated]) -> list[tuple[tuple[int, ...], list[Delegated]]]:
    """Return the cases of each placement, which share their processes."""
    return [(hosts, list(group)) for hosts, group in groupby(cases, key=lambda case: case.hosts)]


def found_copy_ps(lives_s: Sequence[Sequence[float]], calibration: Calibration) -> int:
    """Return the further time of a copy with which `FITTED` is simulated closest."""
    wanted_ps = statistics.median(chain.from_iterable(lives_s)) * 1e12
    return least(
        0, MOST_COPY_PS, lambda value: simulated_ps(FITTED, calibration, value) >= wanted_ps
    )


def simulated_ps(case: Delegated, calibration: Calibration, copy_ps: int) -> int:
    """Return the simulated time of an iteration; each copy takes `copy_ps` longer."""
    shape = case.shape
    packets = FRAMING.packet_bytes + FRAMING.packet_overhead_bytes
    nic = calibration.rate_bps * FRAMING.packet_bytes // packets // 8
    delegation = Delegation(
        delegates=case.delegates,
        copy_bytes_per_second=COPY_BYTES_PER_SECOND,
        copy_ps=copy_ps,
        handling_ps=CABLES * calibration.latency_ps,
        holds_delay=True,
        hosts=case.hosts,
        nic_bytes_per_second=nic,
    )
    known = case.scenario()
    network = replace(
        Network.of(known),
        message_bytes=(shape.message_bytes,) * (shape.stages - 1),
        delegation=delegation,
    )
    return simulate(case.plan(), known, network).makespan_ps
