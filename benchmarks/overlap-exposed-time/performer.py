"""The work of one rank: some steps with one contestant after the other."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from _harness.groups import join
from _harness.ranks import Place
from cases import REAL, Case
from contestants import Alone, Blocking, Build, Ddp, Pcco, sgd
from models import (
    LEARNING_RATE,
    REAL_BATCH,
    REAL_WIDTH,
    check_timed,
    real_model,
    timed_model,
)

TIMEOUT = timedelta(seconds=60)
REAL_LEARNING_RATE = 1e-3


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The cost of one step at one rank."""

    step_s: float
    main_cpu_s: float
    """The processor time of the training thread, in seconds."""
    cpu_s: float
    """The processor time of the process, in seconds."""
    wake_ups: float
    """The number of times that a thread of the process went to sleep."""
    wire_bytes: float
    """The bytes that the NIC sent."""


class Performer:
    """A rank with a slackline group and a gloo group beside it."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._ours = join(place, TIMEOUT)
        self._gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
        self._contestants: dict[str, Alone] = {}
        self._steps: dict[str, int] = {}

    def prepare(self, case: Case, buckets_mb: Sequence[int]) -> list[str]:
        """Build every contestant's model, DDP over gloo with each bucket size.

        Return their names.
        """
        self._leave()
        real = case == REAL
        build = self._real if real else self._timed(case)
        self._x = torch.randn(REAL_BATCH, REAL_WIDTH) if real else torch.ones(1, requires_grad=True)
        self._contestants = {
            "alone": Alone(build),
            "PCCO over slackline": Pcco(build, self._ours),
            "blocking over slackline": Blocking(build, self._ours),
            f"DDP over slackline, {buckets_mb[0]} MB": Ddp(build, self._ours, buckets_mb[0]),
        }
        for bucket_mb in buckets_mb:
            name = f"DDP over gloo, {bucket_mb} MB"
            self._contestants[name] = Ddp(build, self._gloo, bucket_mb)
        self._steps = dict.fromkeys(self._contestants, 0)
        self._checked = not real
        return list(self._contestants)

    def turn(self, name: str, warm_up: int, steps: int) -> Turn:
        """Train for `steps` steps after `warm_up` others, and return the averages of one step.

        The clock starts and ends between two steps, without a wait for other ranks. Communication
        in flight after the last step is not counted, but communication in flight after the last
        warm-up step is.
        """
        contestant = self._contestants[name]
        dist.barrier()
        for _ in range(warm_up):
            contestant.step(self._x)
        before = _Counts.now()
        for _ in range(steps):
            contestant.step(self._x)
        after = _Counts.now()
        contestant.finish()
        dist.barrier()
        self._steps[name] += warm_up + steps
        return after.since(before, steps)

    def check(self) -> None:
        """Raise ArithmeticError unless every contestant has the parameters that its steps leave."""
        for name, contestant in self._contestants.items():
            contestant.finish()
            if self._checked and name != "alone":
                check_timed(contestant.plain, self._steps[name], self._place.size)

    def close(self) -> None:
        """Leave the process groups."""
        self._leave()
        dist.destroy_process_group()

    def _timed(self, case: Case) -> Build:
        layers, weight_count = case.layers(), case.network.weight_count
        return lambda: sgd(timed_model(layers, weight_count, self._place.rank), LEARNING_RATE)

    @staticmethod
    def _real() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        return sgd(real_model(), REAL_LEARNING_RATE)

    def _leave(self) -> None:
        for contestant in self._contestants.values():
            if isinstance(contestant, Pcco):
                contestant.close()
        self._contestants.clear()


@dataclass(frozen=True, kw_only=True)
class _Counts:
    """The time, processor time, context switches and sent bytes of the process until now."""

    time_s: float
    main_cpu_s: float
    cpu_s: float
    switches: int
    sent: int

    @classmethod
    def now(cls) -> _Counts:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return cls(
            time_s=time.perf_counter(),
            main_cpu_s=time.thread_time(),
            cpu_s=used.ru_utime + used.ru_stime,
            switches=used.ru_nvcsw,
            sent=int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text()),
        )

    def since(self, before: _Counts, steps: int) -> Turn:
        """Return the average of one step over the `steps` steps since `before`."""
        return Turn(
            step_s=(self.time_s - before.time_s) / steps,
            main_cpu_s=(self.main_cpu_s - before.main_cpu_s) / steps,
            cpu_s=(self.cpu_s - before.cpu_s) / steps,
            wake_ups=(self.switches - before.switches) / steps,
            wire_bytes=(self.sent - before.sent) / steps,
        )
