"""The work of one rank in the pipelines that compute: all contestants live in one process.

Every contestant trains the same small GPT, from the same weights on the same batches. A turn begins
with the initial weights and takes a few steps of training. The losses of a turn must therefore be
those of one process, which every rank computes for itself before the first turn.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _harness.groups import join
from _harness.ranks import Place
from _harness.timers import sleep_until
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage
from torch.optim import SGD

from slackline.pipeline import Schedule, ScheduleConfig

__all__ = ["AUTO", "CONTESTANTS", "OURS", "SMALL_GPT", "Contestant", "Gpt", "Trainer", "Turn"]

TIMEOUT = timedelta(minutes=2)
TOLERANCE = 1e-4
"""The largest relative difference of a loss from that of one process.

Torch's schedules may add gradients in another order. Slackline's losses must have equal bits.
"""
_CPU = torch.device("cpu")
_KEPT = 4096
"""The steps whose records a pipeline keeps, so that all reasons of its plans can be read."""


@dataclass(frozen=True, kw_only=True)
class Gpt:
    """The model of a pipeline, and its batches."""

    width: int = 128
    heads: int = 4
    length: int = 64
    microbatches: int = 8
    samples: int = 2
    """The number of texts of a microbatch."""
    blocks_per_rank: int = 2
    steps: int = 4
    """The number of training steps of a turn."""


SMALL_GPT = Gpt()


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A pipeline schedule, its backend and the cut of the model that it needs."""

    name: str
    schedule: str
    """A class of torch.distributed.pipelining, or a schedule of slackline."""
    backend: str = "slackline"
    torch: bool = False
    cut: str = "plain"
    """"plain": one stage a rank; "looped": two, dealt out in turn; "vee": two, in a V."""
    warm_up: int = 2
    """The number of turns before the first timed turn."""
    quick: bool = False
    """Whether a quick run measures this contestant too."""

    def stages_of(self, rank: int, ranks: int) -> list[int]:
        """Return the stages that a rank has."""
        if self.cut == "plain":
            return [rank]
        return [rank, rank + ranks if self.cut == "looped" else 2 * ranks - 1 - rank]


_TORCH = (
    ("GPipe", "ScheduleGPipe", "plain"),
    ("1F1B", "Schedule1F1B", "plain"),
    ("Interleaved1F1B", "ScheduleInterleaved1F1B", "looped"),
    ("InterleavedZeroBubble", "ScheduleInterleavedZeroBubble", "plain"),
    ("ZBVZeroBubble", "ScheduleZBVZeroBubble", "vee"),
)
AUTO = "slackline's auto"
OURS = (AUTO, "slackline's 1F1B", "slackline's ZB-H1")
CONTESTANTS = (
    *(
        Contestant(
            name=f"torch's {name} over {backend}",
            schedule=schedule,
            backend=backend,
            torch=True,
            cut=cut,
            quick=name in ("GPipe", "1F1B"),
        )
        for backend in ("gloo", "slackline")
        for name, schedule, cut in _TORCH
    ),
    Contestant(name=OURS[0], schedule="auto", warm_up=20, quick=True),
    Contestant(name=OURS[1], schedule="1f1b"),
    Contestant(name=OURS[2], schedule="zb-h1"),
)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A turn of one contestant on one rank; times are of CLOCK_MONOTONIC."""

    start_ns: int
    end_ns: int
    processor_ns: int
    """The processor time of all threads of the process during the turn."""


class Trainer:
    """A rank with the pipelines of all contestants."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._texts = _example()
        self._pipelines: dict[str, _Pipeline] = {}

    def prepare(self, gpt: Gpt, names: Sequence[str], cores: Sequence[int] | None) -> None:
        """Make the pipelines of the named contestants, and train in one process to compare.

        `cores` has the core of each rank; None lets the system choose.
        """
        if cores is not None:
            # The engine's threads, which start with the group, stay on the core too.
            os.sched_setaffinity(0, {cores[self._place.rank]})
        rank, ranks = self._place.rank, self._place.size
        world = join(self._place, TIMEOUT)
        gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
        self._gloo, self._gpt = gloo, gpt
        layers = _layers(self._texts, gpt, ranks * gpt.blocks_per_rank)
        batches = [_batch(self._texts, gpt, step) for step in range(gpt.steps)]
        self._losses = _alone(layers, batches, gpt, self._texts.loss_of)
        for each in CONTESTANTS:
            if each.name in names:
                group = gloo if each.backend == "gloo" else world
                self._pipelines[each.name] = _Pipeline(
                    each, rank, ranks, group, layers, batches, gpt, self._texts.loss_of
                )

    def turn(self, name: str, start_ns: int) -> Turn:
        """Train for a turn that begins at `start_ns` on every rank, and check the losses."""
        pipeline = self._pipelines[name]
        pipeline.restore()
        sleep_until(start_ns)
        began_ns, before_ns = time.monotonic_ns(), time.process_time_ns()
        found = pipeline.train()
        ended_ns, after_ns = time.monotonic_ns(), time.process_time_ns()
        self._check(pipeline, found)
        return Turn(start_ns=began_ns, end_ns=ended_ns, processor_ns=after_ns - before_ns)

    def report(self, name: str) -> list[str]:
        """Return the reasons for which a pipeline of slackline changed its plan."""
        return self._pipelines[name].changes()

    def settled(self, name: str) -> bool:
        """Return whether a pipeline has its measured plan, and runs no trial."""
        changes = self._pipelines[name].changes()
        known = any("times are known" in each for each in changes)
        return known and "a trial of" not in changes[-1]

    def close(self) -> None:
        """Leave the process groups."""
        for each in self._pipelines.values():
            each.close()
        self._pipelines.clear()
        dist.destroy_process_group()

    def _check(self, pipeline: _Pipeline, found: list[list[float]]) -> None:
        """Raise ArithmeticError unless the losses of a turn are those of one process."""
        everybodys: list[Any] = [None] * self._place.size
        dist.all_gather_object(everybodys, found, group=self._gloo)
        (losses,) = [each for each in everybodys if each]
        name, wanted = pipeline.name, self._losses
        tolerance = TOLERANCE if pipeline.is_torchs else 0.0
        for step, (here, there) in enumerate(zip(losses, wanted, strict=True)):
            for one, other in zip(here, there, strict=True):
                if not abs(one - other) <= tolerance * abs(other):
                    raise ArithmeticError(
                        f"{name}, step {step}: a loss is {one!r}, that of one process {other!r}"
                    )


class _Pipeline:
    """The part of one contestant's pipeline on one rank, with weights of its own."""

    def __init__(
        self,
        contestant: Contestant,
        rank: int,
        ranks: int,
        group: dist.ProcessGroup,
        layers: Sequence[nn.Module],
        batches: Sequence[tuple[Tensor, Tensor]],
        gpt: Gpt,
        loss_of: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        self.name, self.is_torchs = contestant.name, contestant.torch
        mine = contestant.stages_of(rank, ranks)
        count = ranks * len(mine)
        parts = _cut(layers, count)
        modules = [copy.deepcopy(nn.Sequential(*parts[stage])) for stage in mine]
        self._first, self._last = 0 in mine, count - 1 in mine
        self._batches = batches
        self._parameters = [each for module in modules for each in module.parameters()]
        self._initial = [each.detach().clone() for each in self._parameters]
        self._optimizer = SGD(self._parameters, lr=0.1)
        stages = [
            PipelineStage(module, stage, count, _CPU, group=group)
            for module, stage in zip(modules, mine, strict=True)
        ]
        self._schedule: Any
        if contestant.torch:
            kind = getattr(pipelining, contestant.schedule)
            single = issubclass(kind, pipelining.schedules.PipelineScheduleSingle)
            self._schedule = kind(stages[0] if single else stages, gpt.microbatches, loss_of)
        else:
            config = ScheduleConfig(keep_records=_KEPT)
            self._schedule = Schedule(
                stages, gpt.microbatches, loss_of, schedule=contestant.schedule, config=config
            )

    def restore(self) -> None:
        """Give all weights their initial values."""
        with torch.no_grad():
            for each, initial in zip(self._parameters, self._initial, strict=True):
                each.copy_(initial)

    def train(self) -> list[list[float]]:
        """Take a training step on each batch; return its losses on the last stage's rank."""
        found = []
        for x, y in self._batches:
            losses: list[Tensor] = []
            given = (x,) if self._first else ()
            if self._last:
                self._schedule.step(*given, target=y, losses=losses, return_outputs=False)
            else:
                self._schedule.step(*given, return_outputs=False)
            self._optimizer.step()
            self._optimizer.zero_grad()
            found.append([each.item() for each in losses])
        return found if self._last else []

    def changes(self) -> list[str]:
        return [each.change for each in self._schedule.records if each.change]

    def close(self) -> None:
        if not self.is_torchs:
            self._schedule.close()


def _example() -> Any:
    """Return the module of examples/pipeline_gpt.py, whose blocks and loss are used."""
    path = Path(__file__).resolve().parents[2] / "examples" / "pipeline_gpt.py"
    spec = importlib.util.spec_from_file_location("pipeline_gpt", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _layers(example: Any, gpt: Gpt, blocks: int) -> list[nn.Module]:
    """Return the layers of the whole network, with the same weights at every rank."""
    torch.manual_seed(0)
    found: list[nn.Module] = [example.Embedding(gpt.width, gpt.length)]
    found += [example.Block(gpt.width, gpt.heads) for _ in range(blocks)]
    return [*found, nn.LayerNorm(gpt.width), nn.Linear(gpt.width, example.VOCABULARY)]


def _cut(layers: Sequence[nn.Module], stages: int) -> list[list[nn.Module]]:
    """Return the layers of each stage: equally many blocks, and the ends with the outer blocks."""
    embedding, *blocks, norm, head = layers
    each = len(blocks) // stages
    parts = [list(blocks[at : at + each]) for at in range(0, len(blocks), each)]
    parts[0].insert(0, embedding)
    parts[-1] += [norm, head]
    return parts


def _batch(example: Any, gpt: Gpt, step: int) -> tuple[Tensor, Tensor]:
    """Return random texts, and for each byte the byte that follows it."""
    generator = torch.Generator().manual_seed(step)
    shape = (gpt.microbatches * gpt.samples, gpt.length + 1)
    text = torch.randint(example.VOCABULARY, shape, generator=generator)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def _alone(
    layers: Sequence[nn.Module],
    batches: Sequence[tuple[Tensor, Tensor]],
    gpt: Gpt,
    loss_of: Callable[[Tensor, Tensor], Tensor],
) -> list[list[float]]:
    """Train the network in this process, one microbatch after the other; return the losses."""
    model = copy.deepcopy(nn.Sequential(*layers))
    optimizer = SGD(model.parameters(), lr=0.1)
    found = []
    for x, y in batches:
        losses = [loss_of(model(part), target) for part, target in _parts(x, y, gpt)]
        for loss in losses:
            loss.backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.div_(gpt.microbatches)
        optimizer.step()
        optimizer.zero_grad()
        found.append([each.item() for each in losses])
    return found


def _parts(x: Tensor, y: Tensor, gpt: Gpt) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(x.tensor_split(gpt.microbatches), y.tensor_split(gpt.microbatches), strict=True)
