"""Measure a collective by size, as one rank of `slackline bench`; rank 0 prints the rows.

python -m slackline.cli._bench.rank MEASUREMENT      as a rank of torchrun
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist

from slackline.cli._bench import Asked
from slackline.errors import UsageError
from slackline.units import count as counted
from slackline.units import show_byte_rate, show_bytes, show_time

__all__ = ["measure"]

_WARM_UP = 5
_LEAST_CALLS = 3
_HEAD = f"{'size':>9} {'count':>10} {'time':>11} {'algbw':>10} {'busbw':>10}  result"


@dataclass(frozen=True, kw_only=True)
class _Buffers:
    """The tensors of one call, whose larger one has the size that is measured."""

    given: Tensor
    result: Tensor


def measure(asked: Asked) -> None:
    """Measure all sizes with the other ranks, and print a row for each on rank 0."""
    dtype = getattr(torch, asked.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(f"--dtype must be a type of torch, such as float32, not {asked.dtype!r}")
    device = torch.device("cpu")
    if asked.backend == "nccl":
        device = torch.device("cuda", dist.get_node_local_rank(fallback_rank=0))
        torch.cuda.set_device(device)
    dist.init_process_group(asked.backend)
    try:
        if dist.get_rank() == 0 and not asked.as_json:
            ranks = dist.get_world_size()
            print(
                f"{asked.collective} over {asked.backend}, {counted(ranks, 'rank')}, {asked.dtype}"
            )
            print(_HEAD, flush=True)
        for size in asked.sizes:
            _measure_size(asked, size, dtype, device)
    finally:
        dist.destroy_process_group()


def _measure_size(asked: Asked, size: int, dtype: torch.dtype, device: torch.device) -> None:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    # Each rank's part has at least one element, and all parts have the same number.
    part = max(1, size // (dtype.itemsize * ranks))
    buffers = _buffers(asked.collective, part, ranks, dtype, device)
    call = _CALLS[asked.collective]
    _fill(asked.collective, buffers, rank, ranks)
    call(buffers)
    right = _is_right(asked.collective, buffers, rank, ranks)
    for _ in range(_WARM_UP):
        call(buffers)
    seconds = _time(call, buffers, asked.seconds, device)
    told = [0.0 if right else 1.0, seconds]
    wrong = torch.tensor(told, dtype=torch.float64, device=device)
    dist.all_reduce(wrong, dist.ReduceOp.MAX)
    if rank == 0:
        nbytes = part * ranks * dtype.itemsize
        _print(asked, nbytes, part * ranks, float(wrong[1]), ranks, right=not wrong[0])


def _buffers(
    collective: str, part: int, ranks: int, dtype: torch.dtype, device: torch.device
) -> _Buffers:
    whole = torch.zeros(part * ranks, dtype=dtype, device=device)
    piece = torch.zeros(part, dtype=dtype, device=device)
    if collective == "all-gather":
        return _Buffers(given=piece, result=whole)
    if collective == "reduce-scatter":
        return _Buffers(given=whole, result=piece)
    if collective == "all-to-all":
        return _Buffers(given=whole, result=torch.zeros_like(whole))
    return _Buffers(given=whole, result=whole)


# torch 2.13 has new names for these, and warns of the old ones.
_ALL_GATHER = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
_CALLS: dict[str, Callable[[_Buffers], object]] = {
    "all-reduce": lambda of: dist.all_reduce(of.result),
    "all-gather": lambda of: _ALL_GATHER(of.result, of.given),
    "reduce-scatter": lambda of: _REDUCE_SCATTER(of.result, of.given),
    "all-to-all": lambda of: dist.all_to_all_single(of.result, of.given),
    "broadcast": lambda of: dist.broadcast(of.result, 0),
}


def _fill(collective: str, buffers: _Buffers, rank: int, ranks: int) -> None:
    """Give each rank's elements values from which the result of one call is known."""
    buffers.given.fill_(rank + 1)
    if collective == "all-to-all":
        for to, piece in enumerate(buffers.given.chunk(ranks)):
            piece.fill_(rank + ranks * to)


def _is_right(collective: str, buffers: _Buffers, rank: int, ranks: int) -> bool:
    """Return whether the result of the first call is what the ranks' values give."""
    pieces = buffers.result.chunk(ranks)
    total = ranks * (ranks + 1) // 2
    if collective in ("all-reduce", "reduce-scatter"):
        return bool((buffers.result == total).all())
    if collective == "broadcast":
        return bool((buffers.result == 1).all())
    expected = range(1, ranks + 1)
    if collective == "all-to-all":
        expected = range(ranks * rank, ranks * (rank + 1))
    return all(bool((piece == value).all()) for piece, value in zip(pieces, expected, strict=True))


def _time(
    call: Callable[[_Buffers], object], buffers: _Buffers, seconds: float, device: torch.device
) -> float:
    """Return the mean time of a call, of as many as fit into the time that is given.

    All ranks make equally many calls. The values do not grow: a sum of zeros stays zero.
    """
    buffers.given.zero_()
    buffers.result.zero_()
    first_s = _elapsed(call, buffers, _LEAST_CALLS, device) / _LEAST_CALLS
    calls = max(_LEAST_CALLS, int(seconds / max(first_s, 1e-7)))
    count = torch.tensor([calls], dtype=torch.int64, device=device)
    dist.all_reduce(count, dist.ReduceOp.MIN)
    return _elapsed(call, buffers, int(count), device) / int(count)


def _elapsed(
    call: Callable[[_Buffers], object], buffers: _Buffers, count: int, device: torch.device
) -> float:
    dist.barrier()
    began_s = time.perf_counter()
    for _ in range(count):
        call(buffers)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began_s


def _print(
    asked: Asked, nbytes: int, count: int, seconds: float, ranks: int, *, right: bool
) -> None:
    algorithm = nbytes / seconds
    bus = algorithm * asked.bus_share(ranks)
    if asked.as_json:
        row = {
            "collective": asked.collective,
            "backend": asked.backend,
            "ranks": ranks,
            "dtype": asked.dtype,
            "bytes": nbytes,
            "seconds": seconds,
            "algbw_bytes_per_second": algorithm,
            "busbw_bytes_per_second": bus,
            "right": right,
        }
        print(json.dumps(row), flush=True)
        return
    rates = f"{show_byte_rate(algorithm):>10} {show_byte_rate(bus):>10}"
    told = "right" if right else "WRONG"
    size, took = show_bytes(nbytes), show_time(1e9 * seconds)
    print(f"{size:>9} {count:>10} {took:>11} {rates}  {told}", flush=True)


if __name__ == "__main__":
    measure(Asked.of_word(sys.argv[1]))
