"""The work of one rank: steps of one contestant after the other."""

from __future__ import annotations

import gc
import hashlib
import math
from collections.abc import Sequence
from datetime import timedelta
from itertools import cycle

import torch.distributed as dist
from _harness.groups import join
from _harness.ranks import Place
from _harness.usage import Reading, Usage
from calls import python_calls
from cases import GLOO, SLACKLINE, Choice, Contestant, Method
from contestants import HAS_BATCHED_COPY, Trainer, make
from models import MODELS, Model
from torch import Tensor

TIMEOUT = timedelta(seconds=100)
"""The timeout of the process groups, shorter than the main process waits for an answer.

In the first step of FSDP2 with a fused optimizer, torch's DTensor takes a time that grows with the
square of the number of tensors: 10 s and more for 1,000 tensors.
"""
STEADY_STEPS = 10
"""The number of equal steps after which PCCO knows the gradient hooks that it needs."""


class Performer:
    """A rank with a slackline group and a gloo group beside it."""

    def __init__(self, place: Place) -> None:
        ours = join(place, TIMEOUT)
        self._place = place
        self._groups = {SLACKLINE: ours, GLOO: dist.new_group(backend="gloo", timeout=TIMEOUT)}
        self._trainers: dict[Contestant, Trainer] = {}
        self._losses: dict[Contestant, Tensor] = {}

    def prepare(self, model: str) -> int:
        """Drop the previous model's trainers, select `model`, and return the bytes of its
        parameters.
        """
        self.drop(list(self._trainers))
        self._model: Model = MODELS[model]()
        self._batches = self._model.batches(self._place.rank, self._place.size)
        return sum(parameter.nbytes for parameter in self._model.build().parameters())

    def add(self, contestant: Contestant) -> None:
        """Make a contestant's trainer and take its first step, which is not measured.

        In the first step the optimizer allocates its state, and after the first step DDP reorders
        its buckets.
        """
        group = self._groups[contestant.backend or SLACKLINE]
        self._trainers[contestant] = make(contestant, self._model, group)
        self.turn(contestant, warm_up=0, steps=1)

    def batched_copy(self) -> bool:
        """Return whether this torch's DDP can copy the gradients of a bucket in one call."""
        return HAS_BATCHED_COPY

    def settle(self, contestant: Contestant) -> Choice | None:
        """Take a few steps, the same number at every rank, towards the end of a trial.

        Return the variant that the contestant's trial has chosen; None while the trial lasts. Once
        the trial has ended, further steps let the contestant reach a steady state.
        """
        trainer, batches = self._trainers[contestant], cycle(self._batches)
        for _ in range(STEADY_STEPS):
            trainer.step(next(batches))
        choice = trainer.chosen()
        if choice is not None:
            for _ in range(STEADY_STEPS):
                trainer.step(next(batches))
            trainer.finish()
        return choice

    def chosen(self, contestant: Contestant) -> Choice | None:
        """Return the variant that the contestant's latest trial has chosen."""
        return self._trainers[contestant].chosen()

    def drop(self, contestants: Sequence[Contestant]) -> None:
        """Drop trainers and free their memory."""
        for contestant in contestants:
            self._trainers.pop(contestant).close()
            del self._losses[contestant]
        # Wrapped networks and their hooks refer to each other, so only the collector frees them.
        gc.collect()

    def turn(self, contestant: Contestant, warm_up: int, steps: int) -> Usage:
        """Take `warm_up` steps and then `steps` timed ones; return the usage of one timed step.

        The clock starts and ends between two steps, and no rank waits there. Communication of the
        last step may still be in flight at the end. The last warm-up step left as much
        communication in flight at the start, so the two amounts cancel out.
        """
        trainer, batches = self._trainers[contestant], cycle(self._batches)
        dist.barrier()
        for _ in range(warm_up):
            trainer.step(next(batches))
        before = Reading.now()
        for _ in range(steps):
            loss = trainer.step(next(batches))
        after = Reading.now()
        trainer.finish()
        # All ranks wait here, so that no other work starts while another rank is still measured.
        dist.barrier()
        self._losses[contestant] = loss
        return after.since(before, steps)

    def calls(self, contestant: Contestant) -> int:
        """Return the number of Python functions that a step calls, with torch and the model."""
        trainer, batches = self._trainers[contestant], cycle(self._batches)
        trainer.step(next(batches))
        calls = python_calls(lambda: trainer.step(next(batches)))
        trainer.finish()
        dist.barrier()
        return calls

    def check(self) -> dict[Contestant, str]:
        """Return a hash of the parameters of each contestant whose parameters all ranks share.

        Raises ArithmeticError if a loss is no longer a finite number.
        """
        digests = {}
        for contestant, trainer in self._trainers.items():
            trainer.finish()
            if not math.isfinite(self._losses[contestant].item()):
                raise ArithmeticError(f"{contestant.name}: the loss is {self._losses[contestant]}")
            if contestant.method in (Method.PCCO, Method.DDP):
                digests[contestant] = _digest(trainer)
        return digests

    def close(self) -> None:
        """Leave the process groups."""
        self.drop(list(self._trainers))
        dist.destroy_process_group()


def _digest(trainer: Trainer) -> str:
    """Return a hash of the bits of all parameters."""
    found = hashlib.sha256()
    for parameter in trainer.plain.parameters():
        found.update(parameter.detach().numpy().tobytes())
    return found.hexdigest()
