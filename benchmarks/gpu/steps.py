"""The time of a training step of a GPT on ranks that share one GPU, by way of training.

Ranks that share a GPU take turns on it: the times show what communication adds to a step, and
nothing of how training scales.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from model import GPT, LARGE, TINY, loss_of
from rank import Rank
from torch import nn, optim
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from slackline.errors import SlacklineError
from slackline.overlap import DataParallel

__all__ = ["run"]

_WARM = 3
_STEPS, _STEPS_ON_CPU = 10, 2
_NEAR = 1e-2
"""The largest relative difference of two losses: sums of gradients in bf16, in another order."""

Trained = tuple[Any, optim.Optimizer]
Make = Callable[[GPT], Trained]


def run(rank: Rank) -> None:
    dist = rank.join(limit_s=60)
    world, gloo = dist.group.WORLD, dist.new_group(backend="gloo")
    ways: dict[str, Make] = {
        "alone": lambda model: (model, _optimizer(model)),
        "DDP over gloo": _ddp(gloo),
        "DDP over slackline": _ddp(world),
        "overlap, each parameter": _overlap(0),
        "overlap, groups of 4 MiB": _overlap(4 << 20),
        "FSDP2 over gloo": _fsdp(gloo, rank),
        "FSDP2 over slackline": _fsdp(world, rank),
        "alone again": lambda model: (model, _optimizer(model)),
    }
    losses = dict[str, float]()
    for name, make in ways.items():
        dist.barrier(group=gloo)
        try:
            losses[name] = _train(rank, name, make)
        except (SlacklineError, RuntimeError, ValueError) as error:
            rank.skip(f"step, {name}", f"{type(error).__name__}: {error}"[:200])
        gc.collect()
        if not rank.cpu:
            torch.cuda.empty_cache()
    wanted = losses.get("DDP over gloo", 0.0)
    apart = [
        name
        for name, loss in losses.items()
        if not name.startswith("alone") and abs(loss - wanted) > _NEAR * wanted
    ]
    rank.note("wrong results", count=len(apart), of=len(losses), which="; ".join(apart))
    dist.barrier(group=gloo)
    dist.destroy_process_group()


def _optimizer(model: nn.Module) -> optim.Optimizer:
    return optim.SGD(model.parameters(), 0.01, momentum=0.9)


def _ddp(group: Any) -> Make:
    def make(model: GPT) -> Trained:
        wrapped = nn.parallel.DistributedDataParallel(
            model, process_group=group, gradient_as_bucket_view=True, static_graph=True
        )
        return wrapped, _optimizer(wrapped)

    return make


def _overlap(group_bytes: int) -> Make:
    def make(model: GPT) -> Trained:
        optimizer = _optimizer(model)
        return DataParallel(model, optimizer, group_bytes=group_bytes), optimizer

    return make


def _fsdp(group: Any, rank: Rank) -> Make:
    def make(model: GPT) -> Trained:
        mesh = DeviceMesh.from_group(group, rank.device.type)
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model, _optimizer(model)

    return make


def _train(rank: Rank, name: str, make: Make) -> float:
    """Train by one way; note the time of a step, and return the last loss."""
    shape = TINY if rank.cpu else LARGE
    torch.manual_seed(0)
    model, optimizer = make(GPT(shape).to(rank.device))
    drawn = torch.Generator().manual_seed(1 + rank.rank)
    batch = torch.randint(shape.words, (shape.rows, shape.context + 1), generator=drawn)
    batch = batch.to(rank.device)
    if not rank.cpu:
        torch.cuda.reset_peak_memory_stats()
    steps, hosts, begun = _STEPS_ON_CPU if rank.cpu else _STEPS, [], 0.0
    for turn in range(_WARM + steps):
        if turn == _WARM:
            rank.synchronize()
            begun = time.perf_counter()
        step_begun = time.perf_counter()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        hosts.append(time.perf_counter() - step_begun)
    if isinstance(model, DataParallel):
        model.synchronize()
    rank.synchronize()
    step_s = (time.perf_counter() - begun) / steps
    last = float(loss.detach())
    rank.note(
        f"step, {name}",
        ms=round(step_s * 1e3, 2),
        host_ms=round(statistics.median(hosts[_WARM:]) * 1e3, 2),
        loss=round(last, 6),
        parameters=sum(each.numel() for each in GPT(shape).to("meta").parameters()),
        peak_gib=0.0 if rank.cpu else round(torch.cuda.max_memory_allocated() / 2**30, 2),
    )
    if isinstance(model, DataParallel):
        model.close()
    return last
