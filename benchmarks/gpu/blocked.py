"""Matrix products a second on one stream while another stream waits for a slow link.

A kernel that communicates would hold the GPU, or a part of it, for as long as the link is slow.
"""

from __future__ import annotations

import time
from contextlib import nullcontext

import torch
from rank import Rank

__all__ = ["run"]

_BATCH = 8
_ALONE_S = 0.4
_DURING_S = 0.15
"""The time in which products run beside the operation, whose link is silent for longer."""


def run(rank: Rank) -> None:
    dist = rank.join()
    gloo = dist.new_group(backend="gloo")
    width = 64 if rank.cpu else 4096
    dtype = torch.float32 if rank.cpu else torch.bfloat16
    factor = torch.randn(width, width, device=rank.device, dtype=dtype)
    tensor = torch.ones(1 << 20, device=rank.device)
    side = nullcontext() if rank.cpu else torch.cuda.stream(torch.cuda.Stream())
    _rate(rank, factor, _DURING_S)
    dist.barrier(group=gloo)
    alone = _rate(rank, factor, _DURING_S if rank.cpu else _ALONE_S)
    for name, group in (("slackline", None), ("gloo, whose link has no delay", gloo)):
        dist.barrier(group=gloo)
        begun = time.perf_counter()
        with side:
            work = dist.all_reduce(tensor, group=group, async_op=True)
            work.wait()
            host_s = time.perf_counter() - begun
            end = None if rank.cpu else torch.cuda.current_stream().record_event()
        during = _rate(rank, factor, _DURING_S)
        early = end is None or end.query()
        if end is not None:
            end.synchronize()
        rank.note(
            "products a second while a link blocks",
            over=name,
            alone=round(alone),
            during=round(during),
            ratio=round(during / alone, 3),
            host_in_wait_ms=round(host_s * 1e3, 2),
            operation_ms=round((time.perf_counter() - begun) * 1e3, 1),
            ended_before_the_products=str(bool(early)),
        )
    dist.barrier(group=gloo)
    dist.destroy_process_group()


def _rate(rank: Rank, factor: torch.Tensor, seconds: float) -> float:
    """Return the products a second on the current stream, over so many seconds."""
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        for _ in range(_BATCH):
            torch.mm(factor, factor)
        if not rank.cpu:
            torch.cuda.current_stream().synchronize()
        count += _BATCH
    return count / (time.perf_counter() - begun)
