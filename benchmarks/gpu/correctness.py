"""The results of operations on the device: types, lengths, operations, streams."""

from __future__ import annotations

import time
from typing import Any

import torch
from rank import Rank

__all__ = ["run"]

_TYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int32,
    torch.int64,
    torch.complex64,
)
_LENGTHS = (1, 1000, (1 << 20) + 3, (12 << 20) + 5)
"""Lengths in elements: those of one piece and of several, and of more memory than pieces have."""
_LENGTHS_ON_CPU = (1, 1000, (1 << 20) + 3)
_IN_FLIGHT = 40


class _Checks:
    """The names of the checks that failed."""

    def __init__(self) -> None:
        self.made, self.wrong = 0, list[str]()

    def check(self, name: str, right: bool) -> None:
        self.made += 1
        if not right:
            self.wrong.append(name)


def run(rank: Rank) -> None:
    checks = _Checks()
    with rank.staged():
        dist = rank.join()
        for dtype in _TYPES:
            for length in _LENGTHS_ON_CPU if rank.cpu else _LENGTHS:
                _collectives(rank, dist, checks, dtype, length)
        _others(rank, dist, checks)
        _inference(rank, dist, checks)
        _in_flight(rank, dist, checks)
        dist.destroy_process_group()
    rank.note(
        "wrong results", count=len(checks.wrong), of=checks.made, which="; ".join(checks.wrong)
    )


def _collectives(rank: Rank, dist: Any, checks: _Checks, dtype: torch.dtype, length: int) -> None:
    values = [(torch.arange(length) % 7 + other).to(dtype) for other in range(rank.size)]
    total = sum(values[1:], values[0])
    mine, name = values[rank.rank], f"{dtype} {length}"
    summed = mine.to(rank.device, copy=True)
    dist.all_reduce(summed)
    checks.check(f"all_reduce {name}", torch.equal(summed.cpu(), total))
    gathered = torch.empty(length * rank.size, dtype=dtype, device=rank.device)
    dist.all_gather_into_tensor(gathered, mine.to(rank.device))
    checks.check(f"all_gather {name}", torch.equal(gathered.cpu(), torch.cat(values)))
    part = torch.empty(length, dtype=dtype, device=rank.device)
    dist.reduce_scatter_tensor(part, mine.repeat(rank.size).to(rank.device))
    checks.check(f"reduce_scatter {name}", torch.equal(part.cpu(), total))


def _others(rank: Rank, dist: Any, checks: _Checks) -> None:
    """Check a tensor with gaps, objects, and messages in both directions."""
    wide = torch.arange(64 * 96, dtype=torch.float32).view(64, 96)
    turned = (wide if rank.rank == 0 else torch.zeros_like(wide)).to(rank.device).t()
    dist.broadcast(turned, 0)
    checks.check("broadcast of a transposed tensor", torch.equal(turned.cpu(), wide.t()))
    found: list[int | None] = [None] * rank.size
    dist.all_gather_object(found, rank.rank)
    checks.check("objects", found == list(range(rank.size)))
    before, behind = (rank.rank + 1) % rank.size, (rank.rank - 1) % rank.size
    got = torch.empty(5, device=rank.device)
    sent = torch.full((5,), float(rank.rank), device=rank.device)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, sent, before), dist.P2POp(dist.irecv, got, behind)]
    )
    for work in works:
        work.wait()
    checks.check("batch_isend_irecv", bool(got.eq(behind).all()))


def _inference(rank: Rank, dist: Any, checks: _Checks) -> None:
    """Check a late wait in inference mode, in which other threads may not write the tensor."""
    with torch.inference_mode():
        tensor = torch.ones(1000, device=rank.device)
        work = dist.all_reduce(tensor, async_op=True)
        while not work.is_completed():  # A thread that is not in this mode copies the results.
            time.sleep(0.001)
        work.wait()
        checks.check("inference mode", bool(tensor.eq(rank.size).all()))


def _in_flight(rank: Rank, dist: Any, checks: _Checks) -> None:
    """Check many operations in flight on two streams, whose waits come in another order."""
    streams = [None, None] if rank.cpu else [torch.cuda.Stream() for _ in range(2)]
    tensors, works = [], []
    for turn in range(_IN_FLIGHT):
        with torch.cuda.stream(streams[turn % 2]):
            tensors.append(torch.full((1 << 16,), float(turn + rank.rank), device=rank.device))
            works.append(dist.all_reduce(tensors[-1], async_op=True))
    for turn in reversed(range(_IN_FLIGHT)):
        with torch.cuda.stream(streams[turn % 2]):
            works[turn].wait()
            tensors[turn].mul_(2)
    rank.synchronize()
    for turn, tensor in enumerate(tensors):
        total = 2.0 * sum(turn + other for other in range(rank.size))
        checks.check(f"operation {turn} of {_IN_FLIGHT} in flight", bool(tensor.eq(total).all()))
