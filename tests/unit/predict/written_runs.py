"""Telemetry of runs whose rate, latency and computations are known, written for tests.

The times are those of a simulated training: the records are what a rank would have written.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from made_records import header, operations, write

from slackline.plan.collective import Collective, generate, names
from slackline.records import (
    ClockOffset,
    Record,
    StepSummary,
)
from slackline.sim import (
    Fabric,
    Framing,
    Host,
    Layer,
    Operation,
    Policy,
    StepTimes,
    TrainingRun,
    engine_ahead_bytes,
    simulate_training,
)

MS = 10**9
"""Picoseconds of a millisecond."""
UNIX_NS = 1_800_000_000_000_000_000
MONOTONIC_NS = 5_000_000_000


@dataclass(kw_only=True)
class Written:
    """A run to write."""

    ranks: int = 4
    rate_bps: int = 200 * 10**6
    one_way_ns: int = 100_000
    burst_bytes: int = 0
    plan: str = "ring"
    sizes: Sequence[int] = (1 << 19, 1 << 18, 1 << 18)
    """The sizes of the groups in the order of their posts."""
    backward_ms: float = 8.0
    """The time of backward before each post."""
    spread: float = 0.1
    """The largest relative difference of a computation from its mean."""
    policy: Policy = "overlap"
    steps: int = 12
    seed: int = 3

    def times(self, rank: int, step: int) -> StepTimes:
        """Return the computations of a rank in a step."""
        factor = 1 + self.spread * Random(f"{self.seed} {rank} {step}").uniform(-1, 1)
        each = round(self.backward_ms * factor * MS)
        layers = len(self.sizes)
        return StepTimes(
            before_ps=round(MS * factor),
            forward_ps=(each // 2,) * layers,
            backward_ps=(each,) * layers,
            after_ps=MS // 2,
        )

    def simulate(self, rate_bps: int | None = None, ranks: int | None = None) -> TrainingRun:
        """Simulate the run, or the run at another rate or with other ranks."""
        count = ranks or self.ranks
        rate_bps = rate_bps or self.rate_bps
        host = Host(
            rates_bps=(rate_bps,),
            latency_ps=500 * self.one_way_ns,
            cores=2,
            burst_bytes=self.burst_bytes,
            ahead_bytes=engine_ahead_bytes(rate_bps) if self.policy == "overlap" else 0,
        )
        framing = Framing(header_bytes=64, packet_bytes=1448, packet_overhead_bytes=66)
        plan = generate(Collective.ALL_REDUCE, self.plan, count)
        return simulate_training(
            [Layer(forward_ps=0, backward_ps=0, gradient_bytes=n) for n in reversed(self.sizes)],
            Fabric(hosts=(host,) * count, framing=framing, forwards_after_bytes=1514),
            lambda nbytes: Operation(plan=plan, count=nbytes // 4),
            steps=self.steps,
            policy=self.policy,
            times=self.times,
        )

    def write(self, directory: Path) -> TrainingRun:
        """Write the telemetry of the run; return the simulated run."""
        directory.mkdir(parents=True, exist_ok=True)
        trained = self.simulate()
        for rank in range(self.ranks):
            write(directory, rank, *self.records(trained, rank))
        return trained

    def records(self, trained: TrainingRun, rank: int) -> list[Record]:
        """Return the records of one rank."""
        found: list[Record] = [
            header(rank, time_ns=UNIX_NS, monotonic_ns=MONOTONIC_NS),
            ClockOffset(
                rank=rank,
                peer=(rank + 1) % self.ranks,
                at_ns=MONOTONIC_NS,
                offset_ns=0,
                error_ns=self.one_way_ns,
            ),
        ]
        called_ns = 0
        plans = names(Collective.ALL_REDUCE, helpers=1, by_host=True)
        number = plans.index(self.plan) + 1
        for step in range(self.steps):
            times = self.times(rank, step)
            spans = [
                (start // 1000, end // 1000)
                for start, end in reversed(trained.reductions_ps[step][rank])
            ]
            monotonic = [(MONOTONIC_NS + start, MONOTONIC_NS + end) for start, end in spans]
            end_ns = (trained.backward_ps[step][rank] + times.after_ps) // 1000
            late_ns = trained.exposed_ps[step][rank] // 1000
            before_late_ns = trained.exposed_ps[step - 1][rank] // 1000 if step else 0
            forward_ns = sum(times.forward_ps) // 1000 + before_late_ns
            wall_ns = end_ns - called_ns
            backward_ns = (sum(times.backward_ps) + times.after_ps) // 1000
            groups = len(self.sizes)
            found.append(
                StepSummary(
                    rank=rank,
                    step=step,
                    time_ns=UNIX_NS + end_ns,
                    wall_ns=wall_ns,
                    exposed_ns=late_ns,
                    reduced_bytes=sum(self.sizes),
                    parameters=groups,
                    waited=groups,
                    forward_ns=forward_ns,
                    backward_ns=backward_ns,
                    groups=tuple(range(groups)),
                    group_bytes=tuple(self.sizes),
                    group_posted_ns=tuple(start - called_ns for start, _ in spans),
                    group_exposed_ns=(0,) * groups,
                    group_late_ns=(late_ns, *(0,) * (groups - 1)),
                )
            )
            rows = [
                (1, 0, -1, nbytes, 9, 0, 50 + k, step, 0, number, 1, start, start, end, 0, 0)
                for k, (nbytes, (start, end)) in enumerate(zip(self.sizes, monotonic, strict=True))
            ]
            found.append(operations(rank, *rows))
            called_ns = end_ns
        return found
