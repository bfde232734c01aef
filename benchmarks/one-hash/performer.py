"""The work of a rank: training in each of the ways that the benchmark compares."""

from __future__ import annotations

import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from cases import (
    ACCUMULATED,
    BATCH,
    DDP,
    HASHED,
    TREE,
    UNHASHED,
    VIRTUAL_RANKS,
    Training,
)
from models import Loss, samples
from torch import distributed, nn, optim
from torch.nn.parallel import DistributedDataParallel

from slackline import backend
from slackline.overlap import DataParallel

if TYPE_CHECKING:
    from _harness.ranks import Place

OPTIMIZERS = {
    "sgd": lambda parameters: optim.SGD(parameters, lr=0.02, momentum=0.9),
    "foreach": lambda parameters: optim.AdamW(parameters, lr=1e-3, foreach=True),
    "fused": lambda parameters: optim.AdamW(parameters, lr=1e-3, fused=True),
}


TREES = (TREE, HASHED, UNHASHED)


class Performer:
    """A rank, with the models that it trains."""

    def __init__(self, place: Place) -> None:
        torch.set_num_threads(1)
        self._rank, self._size = place.rank, place.size
        distributed.init_process_group(
            "slackline",
            init_method=f"file://{place.store}",
            rank=place.rank,
            world_size=place.size,
        )
        self._folder = Path(place.store).with_suffix(".telemetry")
        self._gloo = distributed.new_group(backend="gloo")
        self._data = samples()
        self._ways: dict[str, tuple[nn.Module, optim.Optimizer]] = {}
        self._training = Training("cnn", "fp32", "sgd")
        self._step: dict[str, int] = {}
        self._virtual = VIRTUAL_RANKS

    def prepare(self, training: Training, ways: tuple[str, ...], virtual_ranks: int) -> None:
        """Make the model of each way anew."""
        self.close_ways()
        self._training, self._virtual = training, virtual_ranks
        for way in ways:
            torch.manual_seed(0)
            model = Loss(training.model)
            optimizer = OPTIMIZERS[training.optimizer](model.parameters())
            if way == DDP:
                wrapped: nn.Module = DistributedDataParallel(
                    model, process_group=self._gloo, gradient_as_bucket_view=True, static_graph=True
                )
            elif way in TREES:
                wrapped = DataParallel(
                    model,
                    optimizer,
                    virtual_ranks=virtual_ranks,
                    seed=1,
                    hash_every=int(way == HASHED),
                    telemetry=None if way == TREE else self._folder / way,
                )
            else:
                wrapped = DataParallel(model, optimizer)
            self._ways[way] = wrapped, optimizer
            self._step[way] = 0

    def train(self, way: str, steps: int) -> tuple[float, float]:
        """Take steps; return the seconds and the processor's seconds of one."""
        wrapped, optimizer = self._ways[way]
        distributed.barrier()
        began, used = time.perf_counter(), time.process_time()
        for _ in range(steps):
            if way in TREES:
                for part in wrapped.parts(self._step[way]):
                    with part:
                        chosen = part.indices(len(self._data), batch=BATCH[self._training.model])
                        self._backward(wrapped, chosen)
            elif way == ACCUMULATED:
                parts = self._parts(self._step[way])
                for number, chosen in enumerate(parts):
                    last = number == len(parts) - 1
                    with nullcontext() if last else wrapped.no_sync():
                        self._backward(wrapped, chosen)
            else:
                self._backward(wrapped, torch.cat(self._parts(self._step[way])))
            optimizer.step()
            optimizer.zero_grad()
            self._step[way] += 1
        if isinstance(wrapped, DataParallel):
            wrapped.synchronize()
        return (time.perf_counter() - began) / steps, (time.process_time() - used) / steps

    def hash(self) -> str:
        """Return the hash of the training in the tree."""
        wrapped, _ = self._ways[TREE]
        return str(wrapped.hash)

    def sent(self) -> int:
        """Return the bytes that this rank has sent over TCP so far."""
        return int(backend.counters().get("tcp_bytes_sent", 0))

    def close_ways(self) -> None:
        """Close the wrappers of all models."""
        for wrapped, _ in self._ways.values():
            if isinstance(wrapped, DataParallel):
                wrapped.close()
        self._ways.clear()

    def close(self) -> None:
        """End the group."""
        self.close_ways()
        distributed.destroy_process_group()

    def _parts(self, step: int) -> list[torch.Tensor]:
        """Return the samples of each of this rank's parts of a step."""
        each = BATCH[self._training.model] // self._virtual
        first = step * BATCH[self._training.model] % (len(self._data) // 2)
        mine = range(self._rank, self._virtual, self._size)
        return [torch.arange(first + part * each, first + (part + 1) * each) for part in mine]

    def _backward(self, wrapped: nn.Module, chosen: torch.Tensor) -> None:
        with ExitStack() as stack:
            if self._training.precision == "bf16":
                stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
            loss = wrapped(self._data[chosen])
        loss.backward()
