"""The work of one rank: steps of two trainings, whose gradients travel as fp32 and as bf16."""

from __future__ import annotations

import hashlib
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from _harness.groups import join
from _harness.ranks import Place
from cases import BF16, GROUP_BYTES, TYPES
from models import MODELS, Model, loss_of
from torch.optim import AdamW

import slackline

TIMEOUT = timedelta(seconds=100)
"""The timeout of the process group, shorter than the main process waits for an answer."""


class Training:
    """A model, its optimizer and its wrapper."""

    def __init__(self, model: Model, kind: str) -> None:
        self.model = model
        self.optimizer = AdamW(model.net.parameters(), lr=model.learning_rate, fused=True)
        self.wrapped = slackline.overlap.DataParallel(
            model.net,
            self.optimizer,
            group_bytes=GROUP_BYTES,
            communicate=torch.bfloat16 if kind == BF16 else None,
        )

    def step(self, number: int, place: Place) -> float:
        """Take a step; return this rank's loss."""
        inputs, targets = self.model.batch(number, place.rank, place.size)
        loss = loss_of(self.wrapped(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


class Performer:
    """A rank with a slackline group."""

    def __init__(self, place: Place) -> None:
        join(place, TIMEOUT)
        self._place = place
        self._trainings: dict[str, Training] = {}

    def prepare(self, model: str, seed: int) -> None:
        """Drop the trainings of before; begin one for each type from the same weights."""
        self._drop()
        self._trainings = {kind: Training(MODELS[model](seed), kind) for kind in TYPES}

    def train(self, kind: str, first: int, count: int) -> list[float]:
        """Take `count` steps from number `first` on; return this rank's losses."""
        training = self._trainings[kind]
        losses = [training.step(first + each, self._place) for each in range(count)]
        training.wrapped.synchronize()
        return losses

    def held_out(self, kind: str) -> tuple[float, float]:
        """Return the loss in nats and the part of right answers on data that no step uses."""
        model = self._trainings[kind].model
        inputs, targets = model.held_out
        with torch.no_grad():
            outputs = model.net(inputs)
            right = outputs.argmax(1) == targets
            return loss_of(outputs, targets).item(), right.double().mean().item()

    def turn(self, kind: str, first: int, steps: int) -> float:
        """Take one step and then `steps` timed ones; return the seconds of a timed step."""
        training = self._trainings[kind]
        dist.barrier()
        training.step(first, self._place)
        began = time.perf_counter()
        for each in range(steps):
            training.step(first + 1 + each, self._place)
        elapsed = time.perf_counter() - began
        training.wrapped.synchronize()
        # All ranks wait here, so that no other work starts while another rank is still measured.
        dist.barrier()
        return elapsed / steps

    def digests(self) -> dict[str, str]:
        """Return a hash of the bits of all parameters of each training."""
        found = {}
        for kind, training in self._trainings.items():
            digest = hashlib.sha256()
            for parameter in training.model.net.parameters():
                digest.update(parameter.detach().numpy().tobytes())
            found[kind] = digest.hexdigest()
        return found

    def convert(self, nbytes: int, repeats: int) -> tuple[list[float], list[float]]:
        """Round fp32 gradients of `nbytes` to bf16 and back; return the seconds of each pass."""
        flat = torch.randn(nbytes // 4)
        sent = torch.empty(nbytes // 4, dtype=torch.bfloat16)
        rounding, widening = [], []
        for _ in range(repeats):
            began = time.perf_counter()
            sent.copy_(flat)
            rounded = time.perf_counter()
            flat.copy_(sent)
            rounding.append(rounded - began)
            widening.append(time.perf_counter() - rounded)
        return rounding, widening

    def close(self) -> None:
        """Leave the process group."""
        self._drop()
        dist.destroy_process_group()

    def _drop(self) -> None:
        for training in self._trainings.values():
            training.wrapped.close()
        self._trainings = {}
