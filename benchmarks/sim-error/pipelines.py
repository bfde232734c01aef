"""Pipelines whose stages wait where they would compute: the cases, a rank's work, the simulation.

The simulator gets one figure, found from a pipeline of two stages that is not judged: the time that
the runtime adds to each instruction.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain, groupby

import torch
import torch.distributed as dist
from _harness.groups import join
from _harness.ranks import LabRanks, Place
from _harness.timed_pipeline import Data, Shape, loss, scenario, stage
from _harness.timers import go_before_others, sharpen_timers, sleep_until
from cases import Effort
from predictions import least
from torch.distributed.pipelining import PipelineStage

from slackline.faults import parse_all
from slackline.lab import Lab, LabOptions
from slackline.pipeline import Schedule
from slackline.plan.pipeline import generate
from slackline.sim import simulate

TIMEOUT = timedelta(minutes=2)
STAGES = (4, 8)
SLOW_MS = (10, 30, 60)
LEAD_MS = 40
"""The time from the request to the start of an iteration, within which all ranks get ready."""
SCHEDULE = "ready"
MOST_TURN_PS = 10**10
ENVIRONMENT = {
    "SLACKLINE_RAILS": "tcp",
    "SLACKLINE_INTERFACE": "eth0",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A pipeline, the delays of its links in both directions, and a limit of memory."""

    shape: Shape
    delays_ms: tuple[tuple[int, int], ...] = ()
    """The slow links: (link, delay of every packet in each direction, in ms)."""
    capped: bool = False
    """Whether a stage may hold only twice as many activations as there are stages."""

    @property
    def cap(self) -> int | None:
        """The number of activations that a stage may hold; None without a limit."""
        return self.shape.cap if self.capped else None

    def __str__(self) -> str:
        where = ", ".join(f"link {link}-{link + 1} {ms} ms" for link, ms in self.delays_ms)
        cap = "no cap" if self.cap is None else f"at most {self.cap} activations"
        return f"{self.shape}, {where or 'healthy'}, {cap}"


FITTED = Pipeline(shape=Shape(stages=2, microbatches=12))
"""The pipeline from which the time of an instruction is found."""
PIPELINES = tuple(
    Pipeline(shape=shape, delays_ms=delays_ms, capped=capped)
    for shape in (Shape(stages=stages, microbatches=3 * stages) for stages in STAGES)
    for capped in (True, False)
    for delays_ms in ((), *(((shape.stages - 2, ms),) for ms in SLOW_MS))
)
QUICK_PIPELINES = PIPELINES[:2]


class Member:
    """A rank with one stage."""

    def __init__(self, place: Place) -> None:
        sharpen_timers()
        self._before_others = go_before_others()
        self._place = place
        self._schedule: Schedule | None = None
        join(place, TIMEOUT)

    def before_others(self) -> bool:
        """Return whether this rank has priority over other programs on the machine."""
        return self._before_others

    def prepare(self, shape: Shape, cap: int | None) -> None:
        """Make the pipeline, and run one iteration, which exchanges the shapes of tensors."""
        self._leave()
        self._data, self._stage = Data(shape, self._place.rank), stage(shape)
        part = PipelineStage(self._stage, self._place.rank, shape.stages, torch.device("cpu"))
        self._schedule = Schedule(
            part, shape.microbatches, loss, scale_grads=False, schedule=SCHEDULE, memory=cap
        )
        self.iterate(0)

    def iterate(self, start_ns: int) -> int:
        """Run one iteration that begins at `start_ns` on every rank; return its end in ns.

        Raises ArithmeticError if a microbatch did not count exactly once.
        """
        assert self._schedule is not None
        self._stage.weight.grad = None
        self._stage.waits.clear()
        sleep_until(start_ns)
        given = (self._data.x,) if self._data.first else ()
        target = self._data.target if self._data.last else None
        self._schedule.step(*given, target=target, return_outputs=False)
        ended_ns = time.monotonic_ns()
        self._data.check(self._stage)
        return ended_ns

    def close(self) -> None:
        """Leave the process group."""
        self._leave()
        dist.destroy_process_group()

    def _leave(self) -> None:
        if self._schedule is not None:
            self._schedule.close()
            self._schedule = None


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The seconds of each iteration, from the common start to the last rank's end, by life."""

    lives_s: dict[Pipeline, list[list[float]]]
    before_others: bool
    """Whether all ranks had priority over other programs on the machine."""


def lab_options() -> LabOptions:
    """Return the lab, whose switch can delay packets and limits no rate."""
    return LabOptions(hosts=max(STAGES), switch="user")


def measured(lab: Lab, pipelines: Iterable[Pipeline], effort: Effort) -> Measured:
    """Measure pipelines; each life has new processes for each number of stages."""
    lives_s: dict[Pipeline, list[list[float]]] = {}
    before_others = True
    for hosts, group in groupby(pipelines, key=lambda pipeline: pipeline.shape.stages):
        of_shape = list(group)
        for _ in range(effort.lives):
            with LabRanks(Member, lab, environment=ENVIRONMENT, hosts=hosts) as ranks:
                before_others &= all(ranks.ask("before_others"))
                for pipeline in of_shape:
                    ranks.ask("prepare", pipeline.shape, pipeline.cap)
                    # The first iteration under a delay still grows the connections' windows.
                    times_s = [
                        _iteration(lab, ranks, pipeline) for _ in range(1 + effort.iterations)
                    ]
                    lives_s.setdefault(pipeline, []).append(times_s[1:])
                ranks.ask("close")
    return Measured(lives_s=lives_s, before_others=before_others)


def _iteration(lab: Lab, ranks: LabRanks, pipeline: Pipeline) -> float:
    faults = [f"link {link}-{link + 1} delay {ms}ms" for link, ms in pipeline.delays_ms]
    with lab.inject(parse_all(faults)):
        start_ns = time.monotonic_ns() + LEAD_MS * 1_000_000
        return (max(ranks.ask("iterate", start_ns)) - start_ns) / 1e9


def found_turn_ps(lives_s: Iterable[Iterable[float]]) -> int:
    """Return the time of an instruction with which `FITTED` is simulated closest."""
    wanted_ps = statistics.median(chain.from_iterable(lives_s)) * 1e12
    return least(0, MOST_TURN_PS, lambda value: simulated_ps(FITTED, value) >= wanted_ps)


def simulated_ps(pipeline: Pipeline, turn_ps: int) -> int:
    """Return the simulated time of an iteration; each instruction takes `turn_ps` longer."""
    known = scenario(pipeline.shape, pipeline.delays_ms, pipeline.cap)

    def longer(times_ps: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(each + turn_ps for each in times_ps)

    slower = replace(
        known,
        forward_ps=longer(known.forward_ps),
        backward_input_ps=longer(known.backward_input_ps),
        backward_weight_ps=longer(known.backward_weight_ps),
    )
    return simulate(generate(SCHEDULE, known), slower, order="ready").makespan_ps
