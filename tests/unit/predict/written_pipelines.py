"""Telemetry of pipelines whose times are known, written for tests.

The times are those of a simulated pipeline: the records are what its ranks would have written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from made_records import header

from slackline.plan.pipeline import Options, Order, PipelinePlan, Scenario, StageMemory, generate
from slackline.records import (
    PipelineStep,
    Setting,
    encode,
    file_of,
)
from slackline.sim import simulate

MS = 10**9
"""Picoseconds of a millisecond."""
UNIX_NS = 1_800_000_000_000_000_000
REST_NS = 700_000


def scenario(factor: float = 1.0, delay_ms: float = 2.0, stages: int = 4) -> Scenario:
    each = (round(4 * MS * factor),) * stages
    delays = (round(delay_ms * MS),) * (stages - 1)
    return Scenario(
        microbatches=8,
        forward_ps=each,
        backward_input_ps=each,
        backward_weight_ps=each,
        forward_delay_ps=delays,
        backward_delay_ps=delays,
        memory=(StageMemory(),) * stages,
    )


@dataclass
class WrittenPipeline:
    """A run of a pipeline to write as telemetry."""

    schedule: str = "1f1b"
    policy: str = "fixed"
    order: Order = "fixed"
    full_backward: bool = True
    steps: int = 5
    settings: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """The value and the origin of each setting, by its name."""
    new_plans: tuple[int, ...] = ()
    """The steps with another plan than the step before."""

    @property
    def plan(self) -> PipelinePlan:
        return generate(self.schedule, scenario(), Options(full_backward=self.full_backward))

    def write(self, directory: Path) -> list[int]:
        """Write the telemetry; return the duration of each step in nanoseconds."""
        records: dict[int, list[str]] = {}
        walls = []
        for step in range(self.steps):
            run = simulate(
                self.plan, scenario(1 + Random(step).uniform(-0.05, 0.05)), order=self.order
            )
            arrivals = {
                str(span.instruction): span.end_ps // 1000 for spans in run.spans for span in spans
            }
            wall_ns = run.makespan_ps // 1000 + REST_NS
            walls.append(wall_ns)
            for rank, spans in enumerate(run.spans):
                senders = [
                    token
                    for token in arrivals
                    if ("F" in token and token[0] == str(rank - 1))
                    or ("B" in token and token[0] == str(rank + 1))
                ]
                record = PipelineStep(
                    rank=rank,
                    step=step,
                    time_ns=UNIX_NS + step * 10**9,
                    wall_ns=wall_ns,
                    computing_ns=0,
                    waiting_ns=0,
                    plan=self.schedule,
                    policy=self.policy,
                    change="a link is slow" if step in self.new_plans else "",
                    tokens=tuple(str(span.instruction) for span in spans),
                    start_ns=tuple(span.start_ps // 1000 for span in spans),
                    end_ns=tuple(span.end_ps // 1000 for span in spans),
                    senders=tuple(senders),
                    arrived_ns=tuple(arrivals[token] + 2_000_000 for token in senders),
                    delays_ns=(2_000_000,) * len(senders),
                )
                records.setdefault(rank, []).append(encode(record))
        directory.mkdir(parents=True, exist_ok=True)
        for rank, lines in records.items():
            head = header(rank, time_ns=UNIX_NS)
            settings = [
                encode(Setting(rank=rank, time_ns=UNIX_NS, name=name, value=value, origin=origin))
                for name, (value, origin) in self.settings.items()
            ]
            text = "\n".join([encode(head), *settings, *lines]) + "\n"
            file_of(directory, rank).write_text(text)
        return walls
