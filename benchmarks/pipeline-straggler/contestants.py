"""The contestants: a table of pipelines, run by slackline.pipeline or by PyTorch's schedules."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from _harness.timed_pipeline import Data, Shape, loss
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleavedZeroBubble,
)

from slackline.pipeline import Schedule, ScheduleConfig
from slackline.testing.timed_stage import TimedStage

ONE_F_ONE_B, ZERO_BUBBLE = "1F1B", "zero bubble"
GLOO_1F1B, GLOO_ZB = "1F1B over gloo", "zero bubble over gloo"
OURS_1F1B, OURS_ZB = "1F1B over slackline", "zero bubble over slackline"
FIXED, ADAPTRA, READY = "fixed zero bubble", "adaptra", "ready"
AUTO, AUTO_UNCAPPED = "auto", "auto, no cap"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A contestant: a schedule, its backend and its options."""

    name: str
    backend: str = "slackline"
    torch: str | None = None
    """The schedule of PyTorch, or None for a schedule of slackline.pipeline."""
    schedule: str = ""
    policy: str | None = None
    capped: bool = False
    quick: bool = False
    """Whether a quick run measures this contestant too."""
    warm_up: int = 1
    """The iterations under a case's faults before the clock starts."""


ENTRIES = (
    Entry(name=GLOO_1F1B, backend="gloo", torch=ONE_F_ONE_B, quick=True),
    Entry(name=GLOO_ZB, backend="gloo", torch=ZERO_BUBBLE),
    Entry(name=OURS_1F1B, torch=ONE_F_ONE_B, quick=True),
    Entry(name=OURS_ZB, torch=ZERO_BUBBLE),
    Entry(name=FIXED, schedule="zero-bubble", policy="fixed", quick=True),
    Entry(name=ADAPTRA, schedule="adaptra", policy="adaptra", warm_up=8),
    Entry(name=READY, schedule="ready", policy="ready", capped=True),
    Entry(name=AUTO, schedule="auto", policy="auto", capped=True, quick=True, warm_up=8),
    Entry(name=AUTO_UNCAPPED, schedule="auto", policy="auto", warm_up=8),
)
"""The contestants: PyTorch's schedules over gloo and slackline, and slackline's own schedules.

PyTorch's zero bubble is ScheduleInterleavedZeroBubble with one stage on each rank. A cap is twice
as many activations as there are stages; the fixed order holds at most one activation less.
"""


class Contestant(Protocol):
    """The part of a pipeline that one rank runs."""

    def step(self) -> None:
        """Run one iteration, forward and backward."""
        ...

    def order(self) -> str | None:
        """Return all ranks' orders as PyTorch's CSV if PyTorch made the orders; otherwise None."""
        ...


class OurPipeline:
    """A pipeline by slackline.pipeline."""

    def __init__(
        self, entry: Entry, stage: TimedStage, shape: Shape, data: Data, group: dist.ProcessGroup
    ) -> None:
        self._data = data
        part = PipelineStage(stage, group.rank(), group.size(), torch.device("cpu"), group=group)
        self._schedule = Schedule(
            part,
            shape.microbatches,
            loss,
            scale_grads=False,
            schedule=entry.schedule,
            memory=shape.cap if entry.capped else None,
            config=ScheduleConfig(policy=entry.policy),
        )

    def step(self) -> None:
        given = (self._data.x,) if self._data.first else ()
        target = self._data.target if self._data.last else None
        self._schedule.step(*given, target=target, return_outputs=False)

    def order(self) -> str | None:
        return None


class TorchPipeline:
    """A pipeline by torch.distributed.pipelining."""

    def __init__(
        self, entry: Entry, stage: TimedStage, shape: Shape, data: Data, group: dist.ProcessGroup
    ) -> None:
        self._data = data
        part = PipelineStage(stage, group.rank(), group.size(), torch.device("cpu"), group=group)
        count = shape.microbatches
        self._schedule: Schedule1F1B | ScheduleInterleavedZeroBubble
        if entry.torch == ONE_F_ONE_B:
            self._schedule = Schedule1F1B(part, count, loss, scale_grads=False)
        else:
            self._schedule = ScheduleInterleavedZeroBubble([part], count, loss, scale_grads=False)

    def step(self) -> None:
        given = (self._data.x,) if self._data.first else ()
        target = self._data.target if self._data.last else None
        self._schedule.step(*given, target=target, return_outputs=False)

    def order(self) -> str | None:
        if isinstance(self._schedule, Schedule1F1B):
            return None
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "order.csv")
            self._schedule._dump_csv(str(path), format="compute_only")
            return path.read_text()
