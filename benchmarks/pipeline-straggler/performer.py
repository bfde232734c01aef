"""The work of one rank: iterations of a pipeline, which all ranks begin at the same moment."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from _harness.groups import join
from _harness.ranks import Place
from _harness.timed_pipeline import Data, Shape, stage
from _harness.timers import go_before_others, sharpen_timers, sleep_until
from contestants import ENTRIES, Contestant, OurPipeline, TorchPipeline

from slackline.testing.timed_stage import Wait

TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """The part of an iteration that one rank runs.

    Times are of CLOCK_MONOTONIC, which all hosts of a lab share.
    """

    start_ns: int
    end_ns: int
    waits: tuple[Wait, ...]
    """The sleeps that stand for computations."""


class Performer:
    """A rank with one contestant's pipeline."""

    def __init__(self, place: Place) -> None:
        sharpen_timers()
        self._place = place
        self._before_others = go_before_others()
        join(place, TIMEOUT)
        self._group: dist.ProcessGroup | None = None

    def prepare(self, shape: Shape, name: str) -> str | None:
        """Make this contestant's pipeline, the only one.

        Return its order as CSV if PyTorch made it.
        """
        (entry,) = (each for each in ENTRIES if each.name == name)
        self._leave()
        self._data = Data(shape, self._place.rank)
        self._stage = stage(shape)
        self._group = dist.new_group(backend=entry.backend, timeout=TIMEOUT)
        kind = OurPipeline if entry.torch is None else TorchPipeline
        self._contestant: Contestant = kind(entry, self._stage, shape, self._data, self._group)
        return self._contestant.order()

    def before_others(self) -> bool:
        """Return whether this rank has priority over other programs on the machine."""
        return self._before_others

    def iterate(self, start_ns: int) -> Iteration:
        """Run one iteration that begins at `start_ns` on every rank, and check its gradients."""
        part, contestant = self._stage, self._contestant
        part.weight.grad = None
        part.waits.clear()
        sleep_until(start_ns)
        began_ns = time.monotonic_ns()
        contestant.step()
        ended_ns = time.monotonic_ns()
        self._data.check(part)
        return Iteration(start_ns=began_ns, end_ns=ended_ns, waits=tuple(part.waits))

    def train(self, iterations: int, start_ns: int) -> tuple[int, list[int]]:
        """Run iterations one after the other.

        Returns the start of the first iteration and the end of each iteration, in ns.
        """
        part, contestant = self._stage, self._contestant
        sleep_until(start_ns)
        began_ns, ended_ns = time.monotonic_ns(), []
        for _ in range(iterations):
            part.weight.grad = None
            contestant.step()
            self._data.check(part)
            ended_ns.append(time.monotonic_ns())
        part.waits.clear()
        return began_ns, ended_ns

    def close(self) -> None:
        """Leave the process groups."""
        self._leave()
        dist.destroy_process_group()

    def _leave(self) -> None:
        if self._group is not None:
            del self._contestant
            dist.destroy_process_group(self._group)
            self._group = None
