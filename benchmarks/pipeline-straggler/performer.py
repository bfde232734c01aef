"""The work of one rank: iterations of a pipeline, which all ranks begin at the same moment."""

from __future__ import annotations

import ctypes
import os
import time
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from _harness.groups import join
from _harness.ranks import Place
from cases import MS, Shape
from contestants import ENTRIES, Contestant, Data, OurPipeline, TorchPipeline

from slackline.testing.timed_stage import TimedStage, Wait

TIMEOUT = timedelta(minutes=10)
_SET_TIMER_SLACK = 29
"""The prctl option for timer slack: how much later than requested a sleep may end (50 us)."""


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
        # Threads inherit the timer slack. Sleeps stand for computations, so they must end on time.
        ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, 1, 0, 0, 0)
        self._place = place
        self._before_others = _before_others()
        join(place, TIMEOUT)
        self._group: dist.ProcessGroup | None = None

    def prepare(self, shape: Shape, name: str) -> str | None:
        """Make this contestant's pipeline, the only one.

        Return its order as CSV if PyTorch made it.
        """
        (entry,) = (each for each in ENTRIES if each.name == name)
        self._leave()
        self._data = Data(shape, self._place.rank)
        self._stage = _stage(shape)
        self._group = dist.new_group(backend=entry.backend, timeout=TIMEOUT)
        kind = OurPipeline if entry.torch is None else TorchPipeline
        self._contestant: Contestant = kind(entry, self._stage, shape, self._data, self._group)
        return self._contestant.order()

    def before_others(self) -> bool:
        """Return whether this rank has priority over other programs on the machine."""
        return self._before_others

    def iterate(self, start_ns: int) -> Iteration:
        """Run one iteration that begins at `start_ns` on every rank, and check its gradients."""
        stage, contestant = self._stage, self._contestant
        stage.weight.grad = None
        stage.waits.clear()
        _sleep_until(start_ns)
        began_ns = time.monotonic_ns()
        contestant.step()
        ended_ns = time.monotonic_ns()
        self._data.check(stage)
        return Iteration(start_ns=began_ns, end_ns=ended_ns, waits=tuple(stage.waits))

    def train(self, iterations: int, start_ns: int) -> tuple[int, list[int]]:
        """Run iterations one after the other.

        Returns the start of the first iteration and the end of each iteration, in ns.
        """
        stage, contestant = self._stage, self._contestant
        _sleep_until(start_ns)
        began_ns, ended_ns = time.monotonic_ns(), []
        for _ in range(iterations):
            stage.weight.grad = None
            contestant.step()
            self._data.check(stage)
            ended_ns.append(time.monotonic_ns())
        stage.waits.clear()
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


def _before_others() -> bool:
    """Give this thread, and threads that it starts, priority over all ordinary programs.

    Each host of a lab stands for a machine of its own, so other programs on this machine must not
    be measured. Returns False if a container forbids the priority.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        return False
    return True


def _stage(shape: Shape) -> TimedStage:
    each = shape.time_ms * MS
    return TimedStage(shape.width, forward_ns=each, backward_input_ns=each, backward_weight_ns=each)


def _sleep_until(moment_ns: int) -> None:
    """Sleep until a time of CLOCK_MONOTONIC, in ns; return at once if that time has passed."""
    left_ns = moment_ns - time.monotonic_ns()
    if left_ns > 0:
        time.sleep(left_ns / 1e9)
