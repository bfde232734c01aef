"""The work of one rank: steps that are divided into parts, and whose costs are counted."""

from __future__ import annotations

import time
from collections import Counter
from itertools import cycle

import torch.distributed as dist
from calls import labelled_calls
from cases import Contestant
from cost_places import OTHER_THREADS, PARTS, place_of
from models import Batch
from performer import Performer
from torch import Tensor

COUNTED_STEPS = 5
"""The steps over which counts are averaged: PCCO's work moves from step to step."""


class CostPerformer(Performer):
    """A rank that reads the processor time of its threads between the parts of a step."""

    def parts(self, contestant: Contestant, warm_up: int, steps: int) -> dict[str, float]:
        """Take `warm_up` steps and then `steps` timed ones.

        Return the processor time of a step in us: of the training thread by part of the step, and
        of all other threads of the process.
        """
        trainer, batches = self._trainers[contestant], cycle(self._batches)
        dist.barrier()
        for _ in range(warm_up):
            trainer.step(next(batches))
        spent = dict.fromkeys(PARTS, 0)
        began, all_threads = time.thread_time_ns(), time.process_time_ns()
        for _ in range(steps):
            loss: Tensor | None = None
            for part in PARTS:
                before = time.thread_time_ns()
                if part == "forward":
                    loss = trainer.forward(next(batches))
                elif part == "backward":
                    assert loss is not None
                    trainer.backward(loss)
                else:
                    getattr(trainer, part)()
                spent[part] += time.thread_time_ns() - before
        ours = time.thread_time_ns() - began
        others = time.process_time_ns() - all_threads - ours
        trainer.finish()
        dist.barrier()
        return {part: ns / steps / 1e3 for part, ns in {**spent, OTHER_THREADS: others}.items()}

    def steps(self, contestant: Contestant, steps: int) -> None:
        """Take some steps."""
        trainer, batches = self._trainers[contestant], cycle(self._batches)
        for _ in range(steps):
            trainer.step(next(batches))
        trainer.finish()

    def calls_by_place(self, contestant: Contestant) -> dict[str, float]:
        """Return the number of Python functions that a step calls, by place."""
        trainer, batches = self._trainers[contestant], cycle(self._batches)
        trainer.step(next(batches))
        found: Counter[str] = Counter()
        for _ in range(COUNTED_STEPS):
            batch: Batch = next(batches)
            found += labelled_calls(lambda batch=batch: trainer.step(batch), place_of)
        trainer.finish()
        dist.barrier()
        return {place: calls / COUNTED_STEPS for place, calls in found.items()}
